"""A wall clock that is set in the middle of training: an incident names it, and the next notice is saved as ever."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("prometheus_client")

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.processes import eventually
from tests.e2e.promql import free_port, scraped
from tests.e2e.trainee import Trainee
from tests.e2e.wall_clock import WallClock

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]


@pytest.mark.parametrize(
    ("seconds", "direction"), [(3600, "forward"), pytest.param(-3600, "back", marks=pytest.mark.soak)]
)
def test_a_clock_that_is_set_is_named_and_costs_no_step(
    trainee: Trainee, aws: AwsSimulator, seconds: int, direction: str
) -> None:
    """The agent reads AWS's time of the end by a clock that is an hour wrong by then."""
    machine, clock = trainee.machine, WallClock(trainee.machine.folder)
    machine.env |= clock.env
    with free_port() as port:
        options = f"--every off --metrics-port {port}"
        first = trainee.guarded(options, aws=aws)
        assert trainee.begun(first) == 0
        first.say("go 3")
        trainee.stepped(first, 3)
        eventually(
            lambda: "spotguard_clock_step_seconds_total{" in scraped(port), "the helper reads the clock"
        )
    clock.set(seconds)
    first.err.until(f"incident clock-jump: the wall clock was set {direction} by {abs(seconds)} s")
    first.say("go 2")
    trainee.stepped(first, 5)
    assert "stands still" not in first.err.text
    aws.preempt(120)
    first.err.until("gate at step 5")
    first.say("free")
    assert first.ended() == 75
    assert machine.committed() == [(1, 5, 0)]

    # The clock is right again: times in the store seem to be of the future, or older than those of the start before.
    clock.set(0)
    second = trainee.guarded("--every off --window 60")
    assert trainee.begun(second) == 5
    second.say("go 1")
    trainee.stepped(second, 6)
    clock.set(-seconds)
    second.send(signal.SIGTERM)
    second.err.until("gate at step 6")
    second.say("free")
    assert second.ended() == 75
    assert machine.committed() == [(1, 5, 0), (2, 6, 0)]

    clock.set(0)
    third = trainee.guarded()
    assert trainee.begun(third) == 6
    third.say("free")
    trainee.finished(third)
    assert third.ended() == 0
