"""Kills for memory while a command runs, by the kernel's counter and by its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotguard.agent.process.memory.kills import MemoryKills

BY_CGROUP = "Memory cgroup out of memory: Killed process 42 (python) total-vm:9kB, anon-rss:4kB"
BY_MACHINE = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task=python,pid=43,uid=0"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(f"3,1,1,-;{BY_CGROUP.replace('42', '41')}\n")
    return path


def write(log: Path, *records: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{record}\n" for record in records)


def test_the_processes_that_the_log_names_since_the_beginning_are_returned(log: Path) -> None:
    kills = MemoryKills(log=str(log))
    kills.begin()
    write(
        log,
        f"3,2,2,-;{BY_CGROUP}",
        " SUBSYSTEM=memory",
        "6,3,3,-;usb 1-1: new device",
        f"6,4,4,-;{BY_MACHINE}",
    )
    assert kills.pids() == {42, 43}
    kills.begin()
    assert kills.pids() == frozenset()
    kills.close()


def test_a_line_that_two_reads_share_is_one_line(log: Path) -> None:
    """A read of a file in the log's place ends anywhere."""
    kills = MemoryKills(log=str(log))
    kills.begin()
    write(log, "6,3,3,-;" + "x" * (64 * 1024 - 30), f"3,2,2,-;{BY_CGROUP}")
    assert kills.pids() == {42}
    kills.close()


def test_a_line_that_another_program_has_written_to_the_log_is_no_evidence(log: Path) -> None:
    """Priority 11 is one of the facility "user"."""
    kills = MemoryKills(log=str(log))
    kills.begin()
    write(log, f"11,2,2,-;{BY_CGROUP}", BY_CGROUP)
    assert kills.pids() == frozenset()
    kills.close()


def test_a_log_that_cannot_be_read_names_nobody(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path / "fifo"):
        if path.name == "fifo":
            os.mkfifo(path)
        kills = MemoryKills(log=str(path))
        kills.begin()
        assert kills.pids() == frozenset()
        kills.close()


def test_a_fifo_is_left_to_its_other_reader(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    kills = MemoryKills(log=str(path))
    kills.begin()
    write(path, f"3,2,2,-;{BY_CGROUP}")
    assert kills.pids() == frozenset()
    assert os.read(reader, 100).startswith(b"3,2,2,-;")
    os.close(reader)
