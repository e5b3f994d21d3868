"""Every interleaving of the gate's rule ends at one whole boundary, and a broken rule is found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import FrameType
from typing import NamedTuple

import pytest

from spotguard.hooks.control.gate_rule import GateRule, Shut
from tests.hooks.control.gates import A, B

STEPS = 3


class Violation(AssertionError):
    """The rule let something happen that must not."""


class Act(NamedTuple):
    """One atomic act of a program: what it does, and to which of the tensors."""

    verb: str
    which: int = 0


@dataclass(frozen=True)
class World:
    """Everything there is: the place, both programs' counters, the live state, what the saver has read."""

    place: tuple[int, bool, bool, Shut]
    trainer: int = 0
    saver: int = 0
    #: Two tensors that optimizers change; their value is the step that wrote them.
    live: tuple[int, int] = (0, 0)
    #: Small things, copied at the boundary.
    copied: int = 0
    #: What the save under way has been told and has read so far.
    told: int = -1
    read: tuple[int, ...] = ()
    #: Completed steps, and whether the state was clean, when the gate was shut.
    shut_at: tuple[int, bool] = (0, False)


@dataclass(frozen=True)
class Story:
    """Two programs side by side."""

    #: The saves, one after the other.
    how: tuple[Shut, ...]
    #: One, or two that step in turn.
    optimizers: int
    #: The step at which no optimizer steps (a GradScaler saw an overflow).
    skipped: int
    #: Boundary copies are made only when somebody wants them.
    late: bool
    #: After this step `guard.save()` stands at the boundary once more.
    asked: int
    #: The gate opens between two saves; else the first was spoiled.
    reopen: bool

    def truth(self, step: int) -> tuple[int, int, int]:
        """The state after so many completed steps, as an uninterrupted run would have it."""
        changed = step - 1 if step > 0 and step - 1 == self.skipped else step
        return changed, changed if self.optimizers == 2 else 0, step

    def training(self) -> list[Act]:
        acts: list[Act] = []
        for step in range(STEPS):
            if step != self.skipped:
                for index in range(self.optimizers):
                    acts += [Act("enter"), Act("write", index)]
            copy = [Act("copy", step + 1)]
            acts += [Act("begin")] if self.late else [Act("begin"), *copy]
            late = copy if self.late else []
            acts += [Act("complete", len(late) + 2), *late, Act("rest"), Act("leave")]
            if step == self.asked:
                acts += [Act("begin"), *copy, Act("rest"), Act("leave")]
        return acts

    def saving(self) -> list[Act]:
        acts: list[Act] = []
        for number, mode in enumerate(self.how, 1):
            acts.append(Act("before" if mode is Shut.BEFORE_CHANGE else "boundary"))
            acts += [Act("steady"), Act("read", 0), Act("read", 1), Act("read", 2), Act("judge")]
            acts += [Act("open")] if self.reopen or number == len(self.how) else []
        return acts


def explore(rule: type[GateRule], story: Story) -> int:
    """Walk through all interleavings of the two programs; the number of different worlds seen.

    Raises:
        Violation: one of them is wrong.
    """
    train, save = story.training(), story.saving()
    start = World(place=(0, False, False, Shut.OPEN))
    seen, stack = {start}, [start]
    while stack:
        world = stack.pop()
        nexts = [n for n in (_train(rule, world, train), _save(rule, world, save, story)) if n is not None]
        if not nexts:
            _check_end(world, train, save)
        for following in nexts:
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return len(seen)


def _check_end(world: World, train: list[Act], save: list[Act]) -> None:
    trained, saved = world.trainer == len(train), world.saver == len(save)
    if saved and world.place[3] is Shut.OPEN and not trained:
        raise Violation(f"training waits for ever at {train[world.trainer]}")
    # A save that wants a boundary after the last one waits for nothing: its deadline, or the end, calls it off.
    wants_more = world.place[3] is Shut.AT_BOUNDARY and trained and world.shut_at[0] == STEPS
    if not saved and not wants_more:
        raise Violation(f"the saver waits for ever at {save[world.saver]}, training at {world.trainer}")


def _train(rule: type[GateRule], world: World, acts: list[Act]) -> World | None:
    """The training thread's next act; None while it is parked, or done."""
    if world.trainer == len(acts):
        return None
    verb, index = acts[world.trainer]
    place, on = rule(*world.place), world.trainer + 1
    live, copied = world.live, world.copied
    if verb == "enter" and not place.may_change():
        return None
    if verb == "begin" and not place.may_begin_boundary():
        return None
    if verb == "leave" and not place.may_leave_boundary():
        return None
    if verb == "write":
        live = (place.completed + 1, live[1]) if index == 0 else (live[0], place.completed + 1)
    if verb == "copy":
        copied = index
    if verb == "complete" and place.complete():
        on += index  # nobody wants it: no rest
    if verb == "rest":
        place.rest()
    return replace(world, place=_as_tuple(place), trainer=on, live=live, copied=copied)


def _save(rule: type[GateRule], world: World, acts: list[Act], story: Story) -> World | None:
    if world.saver == len(acts):
        return None
    verb, index = acts[world.saver]
    place, on = rule(*world.place), world.saver + 1
    if verb in ("before", "boundary"):
        shut_at = (place.completed, not place.dirty)
        place.close(Shut.BEFORE_CHANGE if verb == "before" else Shut.AT_BOUNDARY)
        return replace(world, place=_as_tuple(place), saver=on, shut_at=shut_at, read=())
    if verb == "steady":
        return replace(world, saver=on, told=place.completed) if place.steady() else None
    if verb == "read":
        value = world.copied if index == 2 else world.live[index]
        return replace(world, saver=on, read=(*world.read, value))
    if verb == "judge":
        _judge(world, place, story)
        return replace(world, saver=on)
    place.close(Shut.OPEN)
    return replace(world, place=_as_tuple(place), saver=on)


def _judge(world: World, place: GateRule, story: Story) -> None:
    if world.read != (expected := story.truth(world.told)):
        raise Violation(f"torn: step {world.told} is {expected}, and {world.read} was read")
    steps, clean = world.shut_at
    # A boundary by hand is dirty while its copies are made, and completes nothing.
    due = {steps} if clean else {steps + 1, steps} if story.asked == steps - 1 else {steps + 1}
    if place.shut is Shut.BEFORE_CHANGE and world.told not in due:
        raise Violation(f"step {world.told} was saved, and {steps} were complete (clean: {clean})")


def _as_tuple(place: GateRule) -> tuple[int, bool, bool, Shut]:
    return place.completed, place.dirty, place.at_boundary, place.shut


#: Orders in which saves come. Where copies are made late, only boundaries are asked for.
WINDOW = [(B,), (B, B), (A,), (B, A), (A, B), (B, B, A)]
LATE = [(A,), (A, A), (A, A, A)]
STORIES = [
    Story(how, optimizers, skipped, late, asked, reopen)
    for late in (False, True)
    for how in (LATE if late else WINDOW)
    for optimizers in (1, 2)
    for skipped in (-1, 0, 1)
    for asked in (-1, 1)
    for reopen in (True, False)
]


def test_every_interleaving_ends_at_one_whole_boundary() -> None:
    """Whatever the order of acts: what is read is one completed step, none is lost, and nobody waits for ever."""
    assert sum(explore(GateRule, story) for story in STORIES) > 10_000


class NotLooking(GateRule):
    """Takes a shut gate for a standing state."""

    def steady(self) -> bool:
        return self.shut is not Shut.OPEN


class RestsTooEarly(GateRule):
    """Is at its boundary as soon as the step counts, before the copies that are still to be made."""

    def complete(self) -> bool:
        on = GateRule.complete(self)
        self.at_boundary = not on
        return on


class NeverWanted(GateRule):
    """Never sees that somebody waits for the boundary."""

    def complete(self) -> bool:
        GateRule.complete(self)
        self.dirty = False
        return True


class LetsThrough(GateRule):
    """Looks at the gate only at boundaries."""

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        self.dirty = True
        return True


class CopiesWhileRead(GateRule):
    """Lets a boundary begin although its clean state is being read."""

    def may_begin_boundary(self, thread: int = 0) -> bool:
        self.dirty = True
        return True


class NeverMarksDirty(GateRule):
    """Forgets that a step has begun."""

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        return self.shut is not Shut.BEFORE_CHANGE

    def may_begin_boundary(self, thread: int = 0) -> bool:
        return self.may_change(thread)


class NeverRests(GateRule):
    """Parks at the boundary and does not say so."""

    def rest(self, thread: int = 0) -> None:
        self.dirty = False


class StaysAtBoundary(GateRule):
    """Leaves the boundary and still claims to be there."""

    def may_leave_boundary(self, thread: int = 0) -> bool:
        return self.shut is Shut.OPEN

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        here = self.at_boundary
        may = super().may_change(thread, frame)
        self.at_boundary = here
        return may


class ParksTheDirty(GateRule):
    """Stops a step in its middle."""

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        self.dirty = self.dirty or self.shut is not Shut.BEFORE_CHANGE
        return self.shut is not Shut.BEFORE_CHANGE

    def may_begin_boundary(self, thread: int = 0) -> bool:
        return self.may_change(thread)


@pytest.mark.parametrize(
    "rule",
    [
        NotLooking,
        RestsTooEarly,
        NeverWanted,
        LetsThrough,
        CopiesWhileRead,
        NeverMarksDirty,
        NeverRests,
        StaysAtBoundary,
        ParksTheDirty,
    ],
)
def test_a_broken_rule_is_found(rule: type[GateRule]) -> None:
    """The exploration itself can fail: each of these rules loses a step, tears one, or waits for ever."""

    def explore_all() -> None:
        for story in STORIES:
            explore(rule, story)

    with pytest.raises(Violation):
        explore_all()


def test_a_rank_behind_the_agreed_step_is_not_steady() -> None:
    place = GateRule()
    place.close(Shut.BEFORE_CHANGE, 1)
    assert not place.steady()
    place.close(Shut.BEFORE_CHANGE, 0)
    assert place.steady()


@pytest.mark.parametrize("stepped", [True, False])
def test_an_aborted_boundary_leaves_the_state_as_it_found_it(stepped: bool) -> None:
    place = GateRule()
    if stepped:
        assert place.may_change()
        place.end_change(0, None)
    assert place.may_begin_boundary()
    place.abort_boundary(unchanged=True)
    assert place.dirty is stepped
