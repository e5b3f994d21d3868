"""A save's right to go on ends by its deadline, or because somebody called it off."""

from __future__ import annotations

import math
import threading

import pytest

from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from tests.fakes.clock import ManualClock

PATIENCE = 100.0


def test_a_deadline_only_moves_earlier() -> None:
    """A later word changes nothing."""
    clock = ManualClock(100.0)
    scope = CancelScope(clock, 110.0)
    scope.tighten(120.0)
    assert scope.left() == 10.0
    scope.tighten(105.0)
    assert scope.left() == 5.0
    clock.advance(5.0)
    assert scope.left() == 0.0
    with pytest.raises(Abandoned, match="out of time"):
        scope.check()


def test_without_a_deadline_there_is_no_end() -> None:
    """Until one comes."""
    clock = ManualClock(100.0)
    scope = CancelScope(clock)
    clock.advance(10.0**6)
    scope.check()
    assert scope.left() is None
    scope.tighten(0.0)
    with pytest.raises(Abandoned):
        scope.check()


def test_the_first_to_abandon_a_save_gives_the_reason() -> None:
    """Once: the second has no say, and nobody is woken twice."""
    woken: list[bool] = []
    scope = CancelScope(ManualClock(), on_change=lambda: woken.append(True))
    scope.abandon("a notice came")
    scope.abandon("something else")
    assert scope.abandoned
    assert woken == [True]
    with pytest.raises(Abandoned, match="a notice came"):
        scope.check()


def test_a_waiter_hears_of_an_earlier_deadline() -> None:
    """And of no other word."""
    woken: list[float] = []
    scope = CancelScope(ManualClock(100.0), on_change=lambda: woken.append(scope.deadline))
    scope.tighten(120.0)
    scope.tighten(130.0)
    scope.tighten(110.0)
    assert woken == [120.0, 110.0]


def test_a_pause_ends_when_it_is_called_off() -> None:
    """Whoever waits to try again does not wait for the clock."""
    scope = CancelScope(ManualClock())
    ended: list[str] = []

    def wait() -> None:
        try:
            scope.pause(10.0**6)
        except Abandoned as why:
            ended.append(str(why))

    thread = threading.Thread(target=wait)
    thread.start()
    scope.abandon("enough")
    thread.join(PATIENCE)
    assert ended == ["enough"]


def test_a_pause_is_never_longer_than_what_is_left() -> None:
    """It ends at the deadline, as an end."""
    clock = ManualClock(100.0)
    scope = CancelScope(clock, 100.0)
    with pytest.raises(Abandoned, match="out of time"):
        scope.pause(60.0)


def test_a_part_ends_alone() -> None:
    """By its own deadline, or called off: the whole goes on, and so do other parts."""
    clock = ManualClock(100.0)
    scope = CancelScope(clock, 110.0)
    early, off, other = scope.part(105.0), scope.part(math.inf), scope.part(math.inf)
    off.abandon("enough")
    clock.advance(6.0)
    for part, why in ((early, "out of time"), (off, "enough")):
        with pytest.raises(Abandoned, match=why):
            part.check()
    other.check()
    scope.check()
    assert (other.left(), scope.left(), scope.abandoned) == (4.0, 4.0, False)


def test_a_scopes_deadline_and_end_hold_for_its_parts() -> None:
    """An earlier deadline, and its end; also to a part that is made after that."""
    clock = ManualClock(100.0)
    scope = CancelScope(clock)
    part = scope.part(120.0)
    scope.tighten(110.0)
    assert part.left() == scope.part(math.inf).left() == 10.0
    scope.tighten(130.0)
    assert part.left() == 10.0
    scope.abandon("a notice came")
    for each in (part, scope.part(105.0)):
        with pytest.raises(Abandoned, match="a notice came"):
            each.check()


def test_a_waiter_on_a_part_hears_of_the_whole() -> None:
    """A notice in the middle of a wait without an end."""
    scope = CancelScope(ManualClock())
    part = scope.part(math.inf)
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
    scope.abandon("a notice came")
    thread.join(PATIENCE)
    assert ended == ["a notice came"]


def test_only_the_deadline_of_the_save_itself_hurries_it() -> None:
    """The limit of a part does not. A notice gives the save a deadline, and all its parts."""
    scope = CancelScope(ManualClock())
    part = scope.part(1001.0)
    assert (scope.hurried, part.hurried) == (False, False)
    scope.tighten(1100.0)
    assert (scope.hurried, part.hurried, scope.part(1001.0).hurried) == (True, True, True)
    assert part.left() == 1.0
