"""The command as a user has it: another process, in a folder that is not ours."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.e2e.processes import TIMEOUT


def test_the_command_says_its_version(tmp_path: Path) -> None:
    """`python -m spotguard --version` works from anywhere."""
    command = [sys.executable, "-m", "spotguard", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stdout == f"spotguard {version('spotguard')}\n"
