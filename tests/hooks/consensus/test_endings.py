"""The ends of jobs, with a mailbox that waits in the store of one of their ranks: in order, and never aborted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parent / "programs" / "ends.py"


def run(seconds: float, *words: str) -> str:
    """What was printed; it has ended in order, and nobody complained."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "receives no more notices" not in done.stderr
    assert "terminate called" not in done.stderr
    assert "lost: True" not in done.stdout
    return done.stdout


def forked(seconds: float, jobs: int, seed: int) -> None:
    said = run(seconds, "forked", str(jobs), str(seed))
    ends = re.findall(r"ended with (-?\d+)", said)
    assert ends == ["0"] * 2 * jobs, said


def spawned(seconds: float) -> None:
    assert "spawned: ended with 0" in run(seconds, "spawned")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1], ids="seed-{}".format)
def test_five_jobs_by_hand_and_one_by_spawn_end_in_order(seed: int) -> None:
    """Whichever rank ends first, however it ends, and whoever serves the store."""
    forked(110.0, 5, seed)
    spawned(60.0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 30), ids="seed-{}".format)
def test_three_hundred_jobs_end_in_order(seed: int) -> None:
    """The same, over and over."""
    forked(600.0, 10, seed)
    spawned(120.0)
