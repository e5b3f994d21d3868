"""`spotguard demo` as a newcomer types it, only shorter: the exit code is the verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotguard.demo

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

SCRIPT = Path(spotguard.demo.__file__).with_name("train.py")
#: Half of them must take longer than the agent's second between two looks.
STEPS = 80


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demo makes its workspace. Short, because sockets lie in it: sun_path holds 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def demo(folder: Path, scratch: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["demo", "--folder", str(folder), "--steps", str(STEPS), *more]
    return subprocess.run(
        [sys.executable, "-m", "spotguard", *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_resumed_run_is_the_uninterrupted_one(tmp_path: Path, scratch: Path) -> None:
    """The demo saves inside the window, ends equal, says so last, and leaves its report and nothing else."""
    done = demo(tmp_path / "report", scratch)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("EQUAL: ")
    facts = json.loads((tmp_path / "report" / "demo.json").read_text())
    assert STEPS // 2 <= facts["resumed_at"] < STEPS
    assert facts["steps"] == STEPS
    assert [mark["what"] for mark in facts["timeline"]][-2] == "committed"
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    assert list(scratch.glob("spotguard-demo-*")) == []


def test_a_resume_that_is_not_exact_is_found_out(tmp_path: Path, scratch: Path) -> None:
    """One weight that is not what it was after `restore`, and the demo ends with 1 and names what differs."""
    line = "    done = guard.restore() if guard else 0\n"
    source = SCRIPT.read_text()
    assert line in source
    planted = tmp_path / "train.py"
    planted.write_text(
        source.replace(line, line + "    if done:\n        model.norm.weight.data[0] += 0.001\n")
    )

    done = demo(tmp_path / "report", scratch, "--script", str(planted))

    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("DIFFERENT from the uninterrupted run: loss of step ")
    assert json.loads((tmp_path / "report" / "demo.json").read_text())["equal"] is False
    assert "EQUAL" not in done.stdout
    assert list(scratch.glob("spotguard-demo-*")) == []
