"""The main job: a notice, an emergency save, exit 75, and the next machine finishes as if nothing had been."""

from __future__ import annotations

import pytest

from spotguard.providers.simulator.aws import AwsSimulator
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


def test_a_preempted_run_ends_with_the_weights_of_an_uninterrupted_one(
    trainee: Trainee, aws: AwsSimulator
) -> None:
    """AWS's notice ends in a commit and exit code 75, and the second run finishes bit for bit like plain training."""
    machine = trainee.machine
    first = trainee.guarded(aws=aws)
    assert trainee.begun(first) == 0
    first.say("go 7")
    trainee.stepped(first, 7)
    aws.preempt(120)
    first.err.until("gate at step 7")
    first.say("free")
    first.out.until("^preempted 75$")
    assert first.ended() == 75
    assert machine.committed() == [(1, 7, 0)]

    beside = machine.outcome()
    assert (beside["kind"], beside["step"], beside["code"], beside["why"]) == ("terminate", 7, 75, "")
    assert beside["ended"] == "left when told"
    assert 0 < beside["committed"] < 120 - beside["reserve"]
    (stored,) = machine.outcomes_in_store()
    assert stored["committed"] is True
    assert stored["step"] == 7
    assert stored["notice"]["ids"] == [beside["id"]]
    assert "COMMITTED" in first.err.to_the_end()

    second = trainee.guarded()
    assert trainee.begun(second) == 7
    second.say("free")
    trainee.finished(second)
    assert second.ended() == 0


def test_guarding_changes_nothing(trainee: Trainee) -> None:
    """Training under `run`, with background checkpoints all the time, is plain training bit for bit."""
    guarded = trainee.guarded("--every 0.01", steps=300)
    trainee.begun(guarded)
    guarded.say("free")
    for step in (1, 2, 150):
        trainee.stepped(guarded, step)
    trainee.finished(guarded, 300)
    assert guarded.ended() == 0
    assert trainee.machine.committed(), "no background checkpoint was made"
    assert not trainee.machine.socket().exists()


def test_a_notice_inside_the_step_saves_its_boundary(trainee: Trainee) -> None:
    """After optimizer.step() the old state is gone: training is let go on to guard.step(), and that is saved."""
    first = trainee.guarded("--every off --window 60")
    trainee.begun(first)
    first.say("go 3")
    trainee.stepped(first, 3)
    first.say("half")
    first.out.until("^half$")
    first.send(15)
    first.err.until("has the notice")
    assert trainee.machine.committed() == []
    first.say("go 1")
    first.out.until("^preempted 75$")
    assert first.ended() == 75
    assert trainee.machine.committed() == [(1, 4, 0)]

    second = trainee.guarded()
    assert trainee.begun(second) == 4
    second.say("exit 0")
    assert second.ended() == 0
