"""Where `guard.step()` stands, from the first turns alone: code that was really run, and an order that was really seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from spotguard.hooks.state.misuse.loop_order import TURNS, CallPath, LoopOrder, Misplaced, call_path, common

pytestmark = pytest.mark.torch


def path() -> CallPath:
    """Of whoever calls."""
    return call_path(sys._getframe(1))


class Loop:
    """Notes the calls of a loop in its order."""

    def __init__(self) -> None:
        self.order = LoopOrder()
        self.found: list[Misplaced] = []

    def step(self, optimizer: int) -> None:
        self.order.stepped(optimizer, call_path(sys._getframe(1)))

    def boundary(self) -> None:
        if not self.order.done and (found := self.order.boundary(call_path(sys._getframe(1)))) is not None:
            self.found.append(found)


def top(loop: Loop) -> None:
    for _ in range(TURNS):
        loop.boundary()
        loop.step(1)


def between(loop: Loop) -> None:
    for _ in range(TURNS):
        loop.step(1)
        loop.boundary()
        loop.step(2)
        loop.step(3)


def between_in_functions(loop: Loop) -> None:
    def critic() -> None:
        loop.step(1)
        loop.boundary()

    def turn() -> None:
        critic()
        for _ in range(3):
            loop.step(2)

    while not loop.order.done:
        turn()


def end(loop: Loop) -> None:
    for number in range(TURNS):
        if number:
            loop.step(1)
        loop.boundary()


def two_loops(loop: Loop) -> None:
    """A first boundary of its own, before there is anything to train."""
    loop.boundary()
    for _ in range(TURNS):
        loop.boundary()
        loop.step(1)


def unsteady(loop: Loop) -> None:
    for number in range(TURNS):
        loop.boundary()
        loop.step(number % 2)


def never(loop: Loop) -> None:
    for _ in range(TURNS):
        loop.boundary()


@pytest.mark.parametrize(
    ("run", "after", "is_between"),
    [(top, {1}, False), (between, {2, 3}, True), (between_in_functions, {2}, True)],
)
def test_a_boundary_before_a_step_of_its_turn_is_found(
    run: Callable[[Loop], None], after: set[int], is_between: bool
) -> None:
    loop = Loop()
    run(loop)
    (found,) = loop.found
    assert (found.after, found.between) == (frozenset(after), is_between)
    lines = [int(place.partition(":")[2]) for place in (found.boundary, found.step)]
    assert all(place.startswith("test_loop_order.py:") for place in (found.boundary, found.step))
    assert lines[0] < lines[1]


@pytest.mark.parametrize("run", [end, two_loops, unsteady, never])
def test_a_loop_that_may_be_sound_is_not_reported(run: Callable[[Loop], None]) -> None:
    loop = Loop()
    run(loop)
    assert loop.order.done
    assert loop.found == []


def test_two_calls_of_one_function_are_told_apart_by_their_places() -> None:
    first = path()
    second = path()
    places = common(first, second)
    assert places is not None
    assert places[0].offset < places[1].offset
    assert places[0].line + 1 == places[1].line


def test_calls_without_a_common_function_have_no_order() -> None:
    assert common(path()[-1:], call_path(sys._getframe(1))) is None
    assert common((), ()) is None


def test_a_generator_goes_on_where_its_caller_does_not_say() -> None:
    def paths() -> Iterator[CallPath]:
        yield path()

    def plain() -> CallPath:
        return path()

    here = next(paths())
    there = plain()
    assert common(here, there) is None
    assert common(plain(), plain()) is not None
