"""A training that an error ends: its state is committed from where it stands, the error is recorded, and the run says why."""

from __future__ import annotations

import json

import pytest

from tests.e2e.harness import Machine
from tests.e2e.speaker import SPEAKING, saw
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath


@pytest.mark.torch
def test_an_error_loses_no_step_and_is_recorded(trainee: Trainee) -> None:
    machine = trainee.machine
    running = trainee.guarded()
    trainee.begun(running)
    running.say("go 4")
    trainee.stepped(running, 4)
    running.say("fail the file https://me:swordfish7@host/x is bad")
    assert running.ended() == 1
    running.err.until(r"training failed at step 4: an error of the program at train.py:\d+ in _obey")
    running.err.until("step 4 is committed: the next start resumes there")
    running.err.until(r"ERROR: training failed: rank 0 \(pid \d+\) at step 4: an error of the program")
    assert machine.committed() == [(1, 4, 0)]
    (outcome,) = machine.outcomes_in_store()
    assert (outcome["notice"]["kind"], outcome["committed"], outcome["step"]) == ("failure", True, 4)
    record = (machine.store / "job" / "failures" / "0001-00000.json").read_text()
    assert "swordfish7" not in record
    kept = json.loads(record)
    assert (kept["kind"], kept["error"], kept["step"], kept["newest_checkpoint"]) == (
        "program",
        "RuntimeError",
        4,
        4,
    )
    second = trainee.guarded()
    assert trainee.begun(second) == 4
    second.say("free")
    trainee.finished(second)


@pytest.mark.slow  # `tests/hooks/control/test_error_save.py` has it without an agent
@pytest.mark.torch
@pytest.mark.parametrize(
    ("half", "text", "why"),
    [
        pytest.param(
            True, "boom", r"the error came between optimizer.step\(\) and guard.step\(\)", id="half a step"
        ),
        pytest.param(False, "the loss is nan", "its values may be wrong", id="wrong values"),
    ],
)
def test_a_state_that_does_not_stand_whole_is_not_committed(
    trainee: Trainee, half: bool, text: str, why: str
) -> None:
    running = trainee.guarded()
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)
    running.say("save")
    running.out.until("^saved 3$")
    running.say("go 1")
    trainee.stepped(running, 4)
    if half:
        running.say("half")
        running.out.until("^half$")
    running.say(f"fail {text}")
    assert running.ended() == 1
    running.err.until(f"step 4 is not saved, because {why}; the next start resumes at step 3")
    assert trainee.machine.committed() == [(1, 3, 0)]


def test_an_error_is_restarted_until_the_same_one_comes_at_the_same_step(machine: Machine) -> None:
    """Restarts are the agent's: a process that only tells its errors is enough."""
    running = machine.run("--max-restarts 5", *SPEAKING)
    for restart, step in enumerate((2, 4), start=1):
        saw(running, "ready")
        running.say(f"error ValueError {step}")
        running.err.until(
            f"starting the command again(?: in 1 s)?: it crashed with 1, restart {restart} of 5"
        )
    saw(running, "ready")
    running.say("error ValueError 4")
    assert running.ended() == 1
    running.err.until("the start before failed with the same error at the same step")


@pytest.mark.slow
@pytest.mark.torch
def test_the_same_error_at_the_same_step_is_not_restarted_twice(trainee: Trainee) -> None:
    running = trainee.guarded("--every off --max-restarts 5")
    trainee.begun(running)
    running.say("go 2")
    trainee.stepped(running, 2)
    running.say("fail again")
    running.err.until("starting the command again: it crashed with 1, restart 1 of 5")
    assert trainee.begun(running) == 2
    running.say("fail again")
    assert running.ended() == 1
    running.err.until("the start before failed with the same error at the same step")
    assert len(list((trainee.machine.store / "job" / "attempts").iterdir())) == 2


@pytest.mark.slow
@pytest.mark.torch
def test_the_same_error_at_a_later_step_is_restarted(trainee: Trainee) -> None:
    running = trainee.guarded("--every off --max-restarts 5")
    for done in (0, 2):
        assert trainee.begun(running) == done
        running.say("go 2")
        trainee.stepped(running, done + 2)
        running.say("fail again")
    assert trainee.begun(running) == 4
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0


@pytest.mark.slow
@pytest.mark.torch
def test_failures_of_an_earlier_run_count(trainee: Trainee) -> None:
    """Its agent is gone, and the store has them."""
    rule = "--every off --recover program=restart:1"
    running = trainee.guarded(rule)
    trainee.begun(running)
    running.say("go 2")
    trainee.stepped(running, 2)
    running.say("fail once")
    running.err.until("starting the command again: it crashed with 1, restart 1 of 1 for program")
    assert trainee.begun(running) == 2
    running.say("fail twice")
    assert running.ended() == 1
    later = trainee.guarded(rule)
    assert trainee.begun(later) == 2
    later.say("fail a third time")
    assert later.ended() == 1
    later.err.until("the 1 times of --recover program=restart:1 are used up")
    assert "starting the command again" not in later.err.text
