"""Times that cannot be trusted become one that can; and the fake clock is a clock."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clock import Clock, SystemClock, monotonic_deadline
from tests.fakes.clock import ManualClock


@given(
    wall=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12),
    window=st.floats(min_value=0, max_value=1e6),
)
def test_a_deadline_lies_between_now_and_the_window(wall: float, window: float) -> None:
    """Whatever a cloud's clock or ours says."""
    clock = ManualClock()
    assert clock.monotonic() <= monotonic_deadline(wall, clock, window) <= clock.monotonic() + window


@pytest.mark.parametrize(
    ("ahead", "left"), [(120, 120), (108, 108), (5, 5), (0, 0), (-3, 0), (180, 120), (1e9, 120)]
)
def test_a_deadline_keeps_what_is_left_of_the_window(ahead: float, left: float) -> None:
    """Inside the window it is what the cloud said; outside it is the nearer end."""
    clock = ManualClock()
    assert monotonic_deadline(clock.time() + ahead, clock, 120) - clock.monotonic() == pytest.approx(left)


def test_a_deadline_does_not_move_with_the_wall_clock() -> None:
    """NTP steps after the notice change nothing: the deadline was made once."""
    clock = ManualClock()
    deadline = monotonic_deadline(clock.time() + 100, clock, 120)
    clock.step_wall(-3600)
    assert deadline - clock.monotonic() == pytest.approx(100)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_every_clock_waits_for_an_event_and_not_for_less_than_nothing(clock: Clock) -> None:
    """A set event ends the wait, a negative timeout is none, monotonic time does not go back."""
    event = threading.Event()
    assert clock.wait(event, -5) is False
    before = clock.monotonic()
    event.set()
    assert clock.wait(event, 60) is True
    assert clock.monotonic() >= before


def test_advancing_the_fake_wakes_whoever_waited_long_enough() -> None:
    """A waiter of 10 s sleeps through 9 s and wakes at 10."""
    clock, never = ManualClock(), threading.Event()
    ended = threading.Event()

    def wait() -> None:
        assert clock.wait(never, 10) is False
        ended.set()

    thread = threading.Thread(target=wait, name="waiter")
    thread.start()
    assert clock.wait_for_waiters(1)
    clock.advance(9)
    assert not ended.wait(0.02)
    clock.advance(1)
    assert ended.wait(100)
    thread.join()


def test_an_event_wakes_the_fake_without_time_going_by() -> None:
    """As `stop` does with every thread that holds a clock."""
    clock, stop = ManualClock(), threading.Event()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(clock.wait(stop, 3600)), name="waiter")
    thread.start()
    assert clock.wait_for_waiters(1)
    stop.set()
    thread.join(100)
    assert woken == [True]
    assert clock.monotonic() == 1000.0
