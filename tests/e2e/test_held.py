"""Native code that holds the interpreter's lock for ever: no Python runs in that rank, and its agent sees it all the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

ERRING = str(Path(__file__).parent / "programs" / "erring.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
STEPS, AT = 9, 4
#: Processes that share two cores with others may get none for seconds, and would stand still before they are held.
OPTIONS = "--every off --stall-first 10 --recover stall=restart:1"


def test_a_training_that_native_code_holds_starts_again_from_its_newest_checkpoint(trainee: Trainee) -> None:
    machine = trainee.machine
    running = trainee.guarded(OPTIONS)
    trainee.begun(running)
    running.say("go 4")
    trainee.stepped(running, 4)
    running.say("save")
    running.say("go 2")
    trainee.stepped(running, 6)
    running.say("hold")
    running.err.until(
        r"WARNING: training stands still: rank 0 \(pid \d+\) sends nothing, and was last seen in \w+ at "
        r"train.py:\d+ in \w+: no progress of the run for .* notifying 0 training process"
    )
    running.err.until(r"rank 0 \(pid \d+\) cannot save: no Python runs there")
    running.err.until(r"rank 0 \(pid \d+\) stands still in native code: ")
    running.err.until("training is still stuck: .* restart 1 of 1 for stall")
    running.err.until("starting the command again: training stood still")
    assert trainee.begun(running) == 4
    assert machine.committed() == [(1, 4, 0)]
    (kept,) = (machine.store / "job" / "stalls").iterdir()
    record = json.loads(kept.read_text())
    assert kept.name.startswith("0001-held-00000-")
    assert record["stacks"] or "py-spy" in record["why"]
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0


def test_the_other_rank_commits_what_it_has_of_the_held_one(machine: Machine) -> None:
    run = machine.run(OPTIONS, *TORCHRUN, ERRING, str(STEPS), "hold", str(AT))
    run.err.until(r"training stands still: rank 1 \(pid \d+\) sends nothing, .* notifying 1 training process")
    run.err.until(
        r"training stands still here: it waits in gloo:\w+, number \d+ of process group \S+ default_pg"
    )
    run.err.until(f"rank 0 .*committed step {AT}")
    again = {run.out.until(rf"^(rank [01]) at step {AT}, again$")[1] for _ in range(2)}
    assert again == {"rank 0", "rank 1"}
    assert run.ended() == 0
    stalls = sorted(each.name.partition("-held-")[0] for each in (machine.store / "job" / "stalls").iterdir())
    assert stalls == ["0001", "0001-01-00000.json"]
