"""Whether a process may run: what the kernel tells of it, and of its cgroups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.ipc.process_stat import is_frozen, may_run
from tests.e2e.processes import eventually


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_that_is_stopped_or_has_ended_may_not_run(child: subprocess.Popen[bytes]) -> None:
    assert may_run(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: not may_run(child.pid), "a stopped process may run")
    os.kill(child.pid, signal.SIGCONT)
    eventually(lambda: may_run(child.pid), "a process that goes on may not run")
    child.kill()
    eventually(lambda: not may_run(child.pid), "a zombie may run")
    child.wait()
    assert not may_run(child.pid)


@pytest.mark.parametrize(
    ("line", "file", "free", "frozen"),
    [
        ("0::/a/b", "a/b/cgroup.events", "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n"),
        ("6:freezer:/a/b", "freezer/a/b/freezer.state", "THAWED\n", "FROZEN\n"),
    ],
    ids=["v2", "v1"],
)
def test_a_process_of_a_frozen_cgroup_is_known(
    tmp_path: Path, line: str, file: str, free: str, frozen: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"5:cpu:/\n{line}\n")
    assert not is_frozen(7, tmp_path, tmp_path)  # another namespace's
    state = tmp_path / file
    state.parent.mkdir(parents=True)
    state.write_text(free)
    assert not is_frozen(7, tmp_path, tmp_path)
    state.write_text(frozen)
    assert is_frozen(7, tmp_path, tmp_path)
    assert not is_frozen(8, tmp_path, tmp_path)  # it has ended
