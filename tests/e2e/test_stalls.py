"""A training that stands still: its state is committed from where it stands, its stacks are kept, and nothing is ended."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.processes import Running, eventually
from tests.e2e.trainee import Trainee
from tests.tiers import few_fast, with_nights

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


def stands(trainee: Trainee, running: Running, word: str) -> None:
    """Training stands still behind step 4, is committed from there, and its stacks are kept."""
    machine = trainee.machine
    trainee.begun(running)
    running.say("go 4")
    trainee.stepped(running, 4)
    running.say(word)
    running.out.until("^stuck$")
    running.err.until(
        r"WARNING: training stands still: rank 0 \(pid \d+\) in other at train.py:\d+ in \w+: no progress"
    )
    running.err.until(
        "no progress of the run for .* COMMITTED .* (nothing is ended|follows at twice the limit)"
    )
    assert machine.committed() == [(1, 4, 0)]
    (outcome,) = machine.outcomes_in_store()
    assert (outcome["notice"]["kind"], outcome["committed"], outcome["step"]) == ("stall", True, 4)
    kept = machine.store / "job" / "stalls" / "0001-01-00000.json"
    eventually(kept.exists, "the stacks are kept once the commit is told")
    assert [*kept.parent.iterdir()] == [kept]
    (main, *_) = json.loads(kept.read_text())["stacks"]
    assert main.startswith("MainThread:\n")
    assert "programs/train.py:" in main


@pytest.mark.slow
@pytest.mark.parametrize("word", with_nights(["stick", "stick-in-c"], ["stick"]))
def test_a_training_that_stands_still_is_committed_and_goes_on_to_stand(trainee: Trainee, word: str) -> None:
    running = trainee.guarded("--every off --stall-first 3")
    stands(trainee, running, word)
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    second = trainee.guarded()
    assert trainee.begun(second) == 4
    second.say("free")
    trainee.finished(second)


@pytest.mark.parametrize("word", few_fast(["stick", "stick-in-c"]))
def test_a_training_that_stands_for_good_starts_again_where_it_stood(trainee: Trainee, word: str) -> None:
    running = trainee.guarded("--every off --stall-first 3 --recover stall=restart:1")
    stands(trainee, running, word)
    running.err.until("training is still stuck: .* restart 1 of 1 for stall")
    running.err.until("starting the command again: training stood still")
    assert trainee.begun(running) == 4
    assert trainee.machine.committed() == [(1, 4, 0)]
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0
