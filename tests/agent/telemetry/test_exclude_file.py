"""The file of machines to exclude: a line each, and a file that cannot be written costs a line of the log."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from spotguard.agent.telemetry import exclude_file
from spotguard.agent.telemetry.exclude_file import ExcludeFile


def test_each_machine_appends_its_name(tmp_path: Path) -> None:
    """As Slurm calls it, else as the kernel does."""
    for env, machine in (({"SLURMD_NODENAME": "n7"}, ""), ({}, ""), ({"SLURMD_NODENAME": "n7"}, "n9")):
        file = ExcludeFile(str(tmp_path / "left"), env)
        file.add(machine, "gpu")
        file.close()
    assert (tmp_path / "left").read_text().split() == ["n7", os.uname().nodename, "n9"]


def test_each_of_several_machines_is_named_once(tmp_path: Path) -> None:
    """This one too, after another one was named."""
    file = ExcludeFile(str(tmp_path / "left"), {"SLURMD_NODENAME": "n7"})
    for machine in ("n8", "", "n9", "n8"):
        file.add(machine, "stall")
    file.close()
    assert sorted((tmp_path / "left").read_text().split()) == ["n7", "n8", "n9"]


def test_nothing_is_written_before_a_machine_is_left(tmp_path: Path) -> None:
    ExcludeFile(str(tmp_path / "left"), {}).close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error_with_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = ExcludeFile(str(tmp_path / "none" / "left"), {"SLURMD_NODENAME": "n7"})
    file.add("", "gpu")
    file.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "cannot be written: No such file or directory; exclude n7 in your scheduler" in record.message


def test_a_file_system_that_hangs_does_not_hold_the_end_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO without a reader opens for nobody."""
    monkeypatch.setattr(exclude_file, "_PATIENCE", 0.0)
    os.mkfifo(tmp_path / "left")
    file = ExcludeFile(str(tmp_path / "left"), {})
    file.add("n7", "gpu")
    file.close()
    assert "cannot be written: it hangs; exclude n7" in caplog.text
    os.close(os.open(tmp_path / "left", os.O_RDONLY | os.O_NONBLOCK))  # its thread ends
