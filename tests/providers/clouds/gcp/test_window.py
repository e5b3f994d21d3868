"""How long GCP's warning is: from its first sight, by what the user or the service says, and by no clock."""

from __future__ import annotations

import pytest

from spotguard.providers.clouds.gcp.preempted import LONGEST, WINDOW, PreemptedAtOnce, PreemptedState
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Sighting
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.gcp.looking import at_once, plainly, the_notice


@pytest.mark.parametrize("skew", [-3600, -60, 60, 3600])
def test_s18_a_clock_that_is_off_moves_nothing(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock, skew: float
) -> None:
    """There is no time in the notice: the window is counted from the first sight, and only forwards."""
    vm.preempt()
    first = the_notice(source.poll())
    clock.step_wall(skew)
    vm.fault("etag")
    assert the_notice(source.poll()) is first
    assert first.deadline == clock.monotonic() + 30


@pytest.mark.parametrize(
    ("said", "window"),
    [(None, WINDOW), (120, 120), (150, LONGEST), (3600, LONGEST), (30, 30), (5, 30), (0, 30)],
)
def test_the_window_is_30_seconds_unless_the_user_says_more(
    vm: GcpSimulator, clock: ManualClock, said: float | None, window: float
) -> None:
    """The VM was made with a notice duration, of which the guest is told nothing. Less than 30 is the agent's to cut."""
    vm.preempt()
    with at_once(vm, preemption=PreemptedState(clock, said)) as source:
        notice = the_notice(source.poll())
    assert (notice.window, notice.deadline) == (window, clock.monotonic() + window)


@pytest.mark.parametrize(
    ("key", "value", "window"),
    [
        ("preemption-notice-duration", b"120s", 120),
        ("preemption-notice-duration", b"120", 120),
        ("preemption-notice-duration", b"0s", 30),
        ("preemption-notice-duration/seconds", b"120", 120),
        ("preemption-notice-duration", b"soon", 30),
        ("provisioning-model", b"SPOT", 30),
    ],
)
def test_a_notice_duration_that_the_service_tells_is_used(
    vm: GcpSimulator, clock: ManualClock, key: str, value: bytes, window: float
) -> None:
    """No page says that it does. It is asked for once; the user's own word is stronger."""
    vm.put(f"instance/scheduling/{key}", value)
    believing, told = PreemptedState(clock), PreemptedState(clock, 30)
    for preemption in (believing, told):
        with plainly(vm, preemption=preemption) as source:
            assert [source.poll() for _ in range(3)] == [Sighting(SEEING)] * 3
    assert vm.count(path="recursive=true") == 2
    assert believing.seen().window == window
    assert told.seen().window == 30


def test_a_notice_duration_is_asked_for_until_there_is_an_answer_and_blinds_nobody(vm: GcpSimulator) -> None:
    """It is no terminal key."""
    vm.fault("503", count=2, path="scheduling")
    with plainly(vm) as source:
        assert [source.poll() for _ in range(5)] == [Sighting(SEEING)] * 5
    assert vm.count(path="recursive=true") == 3


def test_the_notice_does_not_wait_for_its_duration(vm: GcpSimulator) -> None:
    """It is not asked for any more, and 30 s are believed in."""
    vm.preempt()
    with plainly(vm) as source:
        assert the_notice(source.poll()).window == 30
    assert vm.count(path="recursive=true") == 0
