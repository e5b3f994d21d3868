"""A job whose memory ends: a checkpoint is made before, and the run names the kernel's kill behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

GROWING = str(Path(__file__).parent / "programs" / "growing.py")


def test_memory_that_is_about_to_end_is_told_and_a_checkpoint_made(machine: Machine) -> None:
    machine.limit_memory(640 << 20)
    run = machine.run("--every 3600", sys.executable, GROWING, "10")
    run.err.until(
        r"memory from spotguard \(.* of 640\.0 MiB of this job's cgroup are in use, and at the pace"
    )
    run.err.until("requesting a background checkpoint")
    assert run.ended() == 128 + 9
    run.err.until(
        r"training failed: rank 0 \(pid \d+\), last seen at step \d+, with a checkpoint of step \d+: "
        r"the machine is out of memory: the kernel killed 1 process of this job, whose limit is 640\.0 MiB"
    )
    ((attempt, step, _),) = machine.committed()
    assert attempt == 1
    assert step > 0
