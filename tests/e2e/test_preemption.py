"""The main job: a notice, an emergency save, exit 75, and the next machine finishes as if nothing had been."""

from __future__ import annotations

import signal

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


def test_a_run_preempted_twice_ends_with_the_weights_of_an_uninterrupted_one(
    trainee: Trainee, aws: AwsSimulator
) -> None:
    """AWS's notice between two steps, then a SIGTERM inside one: both commit, and the third run ends like plain
    training, bit for bit."""
    machine = trainee.machine
    first = trainee.guarded(aws=aws)
    assert trainee.begun(first) == 0
    first.say("go 7")
    trainee.stepped(first, 7)
    aws.preempt(120)
    first.err.until("gate at step 7")
    first.say("free")  # the training thread comes to the optimizer, and is parked there
    first.out.until("^preempted 75$")
    assert first.ended() == 75
    assert machine.committed() == [(1, 7, 0)]

    beside = machine.outcome()
    assert (beside["kind"], beside["step"], beside["code"], beside["why"]) == ("terminate", 7, 75, "")
    assert beside["ended"] in ("left when asked", "asked to leave, then TERM")  # a busy machine exits slowly
    assert 0 < beside["committed"] < 120 - beside["reserve"]
    (stored,) = machine.outcomes_in_store()
    assert (stored["committed"], stored["step"], stored["notice"]["ids"]) == (True, 7, [beside["id"]])
    assert "COMMITTED" in first.err.to_the_end()

    second = trainee.guarded("--every off --window 60")
    assert trainee.begun(second) == 7
    second.say("half")  # after optimizer.step() the state of step 7 is gone: that of step 8 is wanted
    second.out.until("^half$")
    second.send(signal.SIGTERM)
    second.err.until("has the notice")
    assert machine.committed() == [(1, 7, 0)]
    # To the boundary and no further: the gate may still be open when the agent hears that it was told.
    second.say("go 1")
    second.err.until("gate at step 8")
    second.say("free")
    second.out.until("^preempted 75$")
    assert second.ended() == 75
    assert machine.committed() == [(1, 7, 0), (2, 8, 0)]

    third = trainee.guarded()
    assert trainee.begun(third) == 8
    third.say("free")
    trainee.finished(third)
    assert third.ended() == 0


def test_guarding_changes_nothing(trainee: Trainee) -> None:
    """Training under `run`, with background checkpoints all the time, is plain training bit for bit."""
    guarded = trainee.guarded("--every 0.01", steps=100)
    trainee.begun(guarded)
    guarded.say("free")
    for step in (1, 2, 50):
        trainee.stepped(guarded, step)
    trainee.finished(guarded, 100)
    assert guarded.ended() == 0
    assert trainee.machine.committed(), "no background checkpoint was made"
    assert not trainee.machine.socket().exists()
