"""A command of the operator's whose runner is killed: its limit holds all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import eventually

#: It starts a command with a limit, and is killed when the command runs.
RUNNER = """
import os, signal, sys, time
from spotguard.agent.process.shell_command import ShellCommand
from spotguard.providers.clock import SystemClock
clock = SystemClock()
command = ShellCommand("--on-failure", f"echo $$ > {sys.argv[1]}.new; mv {sys.argv[1]}.new {sys.argv[1]}; sleep 999 & wait", clock, lambda: None, outlived=True)
command.start("failure", dict(os.environ), clock.monotonic() + 0.5)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_command_whose_runner_was_killed_ends_at_its_limit(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUNNER, str(tmp_path / "pid")], check=False, timeout=60)
    assert done.returncode == -9
    pid = int((tmp_path / "pid").read_text())
    eventually(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(),
        "it is gone",
    )
