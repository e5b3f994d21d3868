"""A command and everything that it starts are ended as one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spotguard.prove.processes import Processes
from spotguard.providers.clock import SystemClock


def test_a_command_that_shows_no_environment_is_ended_too(tmp_path: Path) -> None:
    """One that is just being started shows none yet, and nothing else would end it."""
    processes = Processes(("A_MARK", str(tmp_path)), tmp_path / "console.txt", SystemClock())
    os.mkfifo(tmp_path / "there")
    words = f"open({str(tmp_path / 'there')!r}, 'w').close(); import signal; signal.pause()"
    processes.start(["env", "-i", sys.executable, "-c", words], tmp_path, os.environ)
    (tmp_path / "there").read_text()  # until it has cleared its environment
    processes.end()
    assert processes.ended
    assert processes.returncode == -9
