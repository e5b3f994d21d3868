"""The steps that a hang costs, by its place and by what the other rank holds: the table of docs/how-to/stalls.md."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

HANGING = str(Path(__file__).parent / "programs" / "hanging.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
SAVED, AT, STEPS = 3, 5, 8
#: Of the 600 s that a stall's save may take, at least these are left if it is given up at once.
LEFT = 560.0


def life(machine: Machine, way: str, place: str, stall: int = 4) -> Running:
    """Without its extras, a step is worth less than an older one: so little here that the newest step counts."""
    options = f"--every off --extras-worth 0 --stall-first {stall} --recover stall=restart:1,killed=restart:1"
    return machine.run(options, *TORCHRUN, HANGING, way, place, str(SAVED), str(AT), str(STEPS))


def begun(run: Running) -> set[int]:
    """The steps at which both ranks begin."""
    return {int(run.out.until(r"^rank [01] \(pid \d+\) begins at step (\d+)$")[1]) for _ in range(2)}


@pytest.mark.parametrize(
    ("way", "place", "resumed"),
    [
        ("fsdp", "clipping", AT),
        # The other rank has taken the step, and stands in the next one.
        pytest.param("ddp", "clipping", AT + 1, marks=pytest.mark.soak),
        pytest.param("ddp", "changed", AT + 1, marks=pytest.mark.soak),
        # One shard has changed and the other may not have: there is no step that stands whole.
        ("fsdp", "changing", SAVED),
        pytest.param("fsdp", "changed", SAVED, marks=pytest.mark.soak),
    ],
)
def test_a_hang_costs_the_steps_that_nobody_holds_whole(
    machine: Machine, way: str, place: str, resumed: int
) -> None:
    run = life(machine, way, place)
    assert begun(run) == {0}
    run.err.until(r"training stands still: rank 1 \(pid \d+\) in ")
    run.err.until("starting the command again: training stood still")
    assert begun(run) == {resumed}
    assert run.ended() == 0
    stalls = [
        record
        for path in (machine.store / "job" / "outcomes").glob("0001-*.json")
        if (record := json.loads(path.read_text()))["notice"]["kind"] == "stall"
    ]
    assert stalls, "the stall has a record"
    assert all(each["committed"] == (resumed != SAVED) for each in stalls)
    assert all(each["seconds_left"] > LEFT for each in stalls), "the save does not wait out its patience"


@pytest.mark.parametrize(
    ("way", "resumed"), [("ddp", AT), pytest.param("fsdp", SAVED, marks=pytest.mark.soak)]
)
def test_a_stopped_rank_that_is_killed_costs_what_only_it_held(
    machine: Machine, way: str, resumed: int
) -> None:
    """While it is stopped, nothing is saved: it may continue."""
    run = life(machine, way, "stopped", stall=20)  # no first step takes as long, on a busy machine either
    assert begun(run) == {0}
    stopped = run.err.until(r"WARNING: rank 1 \(pid (\d+)\) is stopped by a signal")
    assert "stands still" not in run.err.text
    os.kill(int(stopped[1]), signal.SIGKILL)
    run.err.until("starting the command again: ")
    assert begun(run) == {resumed}
    assert run.ended() == 0
