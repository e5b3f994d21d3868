"""A save's right to go on ends by its deadline, or because somebody called it off."""

from __future__ import annotations

import math
import threading

import pytest

from spotguard.hooks.save.cancel_scope import Abandoned, CancelScope
from tests.fakes.clock import ManualClock

PATIENCE = 20.0


def test_a_deadline_only_moves_earlier() -> None:
    """A later word changes nothing."""
    clock = ManualClock(100.0)
    effort = CancelScope(clock, 110.0)
    effort.tighten(120.0)
    assert effort.left() == 10.0
    effort.tighten(105.0)
    assert effort.left() == 5.0
    clock.advance(5.0)
    assert effort.left() == 0.0
    with pytest.raises(Abandoned, match="out of time"):
        effort.check()


def test_without_a_deadline_there_is_no_end() -> None:
    """Until one comes."""
    clock = ManualClock(100.0)
    effort = CancelScope(clock)
    clock.advance(10.0**6)
    effort.check()
    assert effort.left() is None
    effort.tighten(0.0)
    with pytest.raises(Abandoned):
        effort.check()


def test_who_calls_it_off_first_says_why() -> None:
    """Once: the second has no say, and nobody is woken twice."""
    woken: list[bool] = []
    effort = CancelScope(ManualClock(), on_change=lambda: woken.append(True))
    effort.abandon("a notice came")
    effort.abandon("something else")
    assert effort.abandoned
    assert woken == [True]
    with pytest.raises(Abandoned, match="a notice came"):
        effort.check()


def test_who_waits_hears_of_a_deadline_that_moves() -> None:
    """And of no other word."""
    woken: list[float] = []
    effort = CancelScope(ManualClock(100.0), on_change=lambda: woken.append(effort.deadline))
    effort.tighten(120.0)
    effort.tighten(130.0)
    effort.tighten(110.0)
    assert woken == [120.0, 110.0]


def test_a_pause_ends_when_it_is_called_off() -> None:
    """Whoever waits to try again does not wait for the clock."""
    effort = CancelScope(ManualClock())
    ended: list[str] = []

    def wait() -> None:
        try:
            effort.pause(10.0**6)
        except Abandoned as why:
            ended.append(str(why))

    thread = threading.Thread(target=wait)
    thread.start()
    effort.abandon("enough")
    thread.join(PATIENCE)
    assert ended == ["enough"]


def test_a_pause_is_never_longer_than_what_is_left() -> None:
    """It ends at the deadline, as an end."""
    clock = ManualClock(100.0)
    effort = CancelScope(clock, 100.0)
    with pytest.raises(Abandoned, match="out of time"):
        effort.pause(60.0)


def test_a_part_ends_alone() -> None:
    """By its own deadline, or called off: the whole goes on, and so do other parts."""
    clock = ManualClock(100.0)
    effort = CancelScope(clock, 110.0)
    early, off, other = effort.part(105.0), effort.part(math.inf), effort.part(math.inf)
    off.abandon("enough")
    clock.advance(6.0)
    for part, why in ((early, "out of time"), (off, "enough")):
        with pytest.raises(Abandoned, match=why):
            part.check()
    other.check()
    effort.check()
    assert (other.left(), effort.left(), effort.abandoned) == (4.0, 4.0, False)


def test_what_happens_to_the_whole_happens_to_its_parts() -> None:
    """An earlier deadline, and its end; also to a part that is made after that."""
    clock = ManualClock(100.0)
    effort = CancelScope(clock)
    part = effort.part(120.0)
    effort.tighten(110.0)
    assert part.left() == effort.part(math.inf).left() == 10.0
    effort.tighten(130.0)
    assert part.left() == 10.0
    effort.abandon("a notice came")
    for each in (part, effort.part(105.0)):
        with pytest.raises(Abandoned, match="a notice came"):
            each.check()


def test_who_waits_for_a_part_hears_of_the_whole() -> None:
    """A notice in the middle of a wait without an end."""
    effort = CancelScope(ManualClock())
    part = effort.part(math.inf)
    ended: list[str] = []
    waits = threading.Event()

    def over() -> bool:
        waits.set()
        return False

    def wait() -> None:
        try:
            part.wait(over, threading.Event())
        except Abandoned as why:
            ended.append(str(why))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(PATIENCE)
    effort.abandon("a notice came")
    thread.join(PATIENCE)
    assert ended == ["a notice came"]
