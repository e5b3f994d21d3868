"""A batch script for Slurm, as a file that is printed and then yours: `spotguard deploy slurm >train.sbatch`."""

from __future__ import annotations

from importlib import resources


def batch_script() -> str:
    """What `sbatch` is given."""
    return resources.files(__package__).joinpath("templates", "train.sbatch").read_text()
