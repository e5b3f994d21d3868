"""The processes of a command are told from others that have got their numbers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from spotguard.agent.ipc.process_stat import stat_of
from spotguard.agent.process import proctree

TIMEOUT = 60


@pytest.mark.parametrize(("later", "returncode"), [(0, -signal.SIGKILL), (1, 0)])
def test_only_the_process_that_was_seen_is_killed(later: int, returncode: int) -> None:
    """One that began later has got the number of an ended one."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = stat_of(child.pid)
    assert stat is not None
    proctree.kill({child.pid: stat._replace(born=stat.born - later)})
    child.communicate(b"\n", timeout=TIMEOUT)
    assert child.returncode == returncode
