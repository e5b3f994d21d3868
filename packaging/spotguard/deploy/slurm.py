"""A batch script for Slurm, printed for you to own: `spotguard deploy slurm >train.sbatch`."""

from __future__ import annotations

from importlib import resources


def batch_script() -> str:
    """Return the batch script for `sbatch`."""
    return resources.files(__package__).joinpath("template-files", "train.sbatch").read_text()
