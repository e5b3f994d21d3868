"""A command of the operator's whose runner is killed: its limit holds all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import eventually

#: It starts a command with a limit, and is killed when the command has written its pid. Its own clock stands still, so that it never
#: reaches the limit itself.
RUNNER = """
import os, signal, sys
from spotguard.agent.process.shell_command import ShellCommand
from spotguard.providers.clock import SystemClock
class Still(SystemClock):
    def monotonic(self):
        return 0.0
fifo = sys.argv[1]
command = ShellCommand("--on-failure", f"echo $$ > {fifo}; sleep 999 & wait", Still(), lambda: None, outlived=True)
command.start("failure", dict(os.environ), 0.5)
with open(fifo) as pid:
    print(pid.read(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_command_whose_runner_was_killed_ends_at_its_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path / "pid")],
        stdout=subprocess.PIPE,
        check=False,
        timeout=100,
    )
    assert done.returncode == -9
    eventually(lambda: _is_gone(int(done.stdout)), "it is gone")


def _is_gone(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()  # of a zombie, it is empty
    except OSError:
        return True
