"""The batch script for Slurm comes out of the package as it lies there. What it does, tests/e2e/test_slurm.py shows."""

from __future__ import annotations

import re
import subprocess

import pytest

from spotguard.slurm.__main__ import main

TIMEOUT = 30.0


def test_it_is_printed_whole_and_is_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/bash\n")
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=TIMEOUT)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_slurm_reads_each_of_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """It stops looking for them at the first command; and the signal is the tasks', since srun makes SIGKILL of its own."""
    main([])
    text = capsys.readouterr().out
    head, _, below = text.partition("\n\n")
    assert re.findall("^#SBATCH +(.*)$", head, re.MULTILINE) == [
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        "--signal=TERM@120",
    ]
    assert "#SBATCH" not in below


def test_what_it_does_not_know_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes=2"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("spotguard: ")
