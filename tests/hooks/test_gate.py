"""The gate: every interleaving of its rule, and its lock between two real threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from spotguard.hooks.gate import Gate, Place, Shut

#: Seconds after which a wait between threads counts as a deadlock.
PATIENCE = 10.0


def within(seconds: float) -> Callable[[], float]:
    """What is left of so many seconds from now."""
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())


# --- every interleaving of the pure rule ---------------------------------------------------------------------


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


def explore(rule: type[Place], story: Story) -> int:
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


def _train(rule: type[Place], world: World, acts: list[Act]) -> World | None:
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


def _save(rule: type[Place], world: World, acts: list[Act], story: Story) -> World | None:
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


def _judge(world: World, place: Place, story: Story) -> None:
    if world.read != (expected := story.truth(world.told)):
        raise Violation(f"torn: step {world.told} is {expected}, and {world.read} was read")
    steps, clean = world.shut_at
    # A boundary by hand is dirty while its copies are made, and completes nothing.
    due = {steps} if clean else {steps + 1, steps} if story.asked == steps - 1 else {steps + 1}
    if place.shut is Shut.BEFORE_CHANGE and world.told not in due:
        raise Violation(f"step {world.told} was saved, and {steps} were complete (clean: {clean})")


def _as_tuple(place: Place) -> tuple[int, bool, bool, Shut]:
    return place.completed, place.dirty, place.at_boundary, place.shut


B, A = Shut.BEFORE_CHANGE, Shut.AT_BOUNDARY
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
    assert sum(explore(Place, story) for story in STORIES) > 10_000


class NotLooking(Place):
    """Takes a shut gate for a standing state."""

    def steady(self) -> bool:
        return self.shut is not Shut.OPEN


class RestsTooEarly(Place):
    """Is at its boundary as soon as the step counts, before the copies that are still to be made."""

    def complete(self) -> bool:
        on = Place.complete(self)
        self.at_boundary = not on
        return on


class NeverWanted(Place):
    """Never sees that somebody waits for the boundary."""

    def complete(self) -> bool:
        Place.complete(self)
        self.dirty = False
        return True


class LetsThrough(Place):
    """Looks at the gate only at boundaries."""

    def may_change(self) -> bool:
        self.dirty = True
        return True


class CopiesWhileRead(Place):
    """Lets a boundary begin although its clean state is being read."""

    def may_begin_boundary(self) -> bool:
        self.dirty = True
        return True


class NeverMarksDirty(Place):
    """Forgets that a step has begun."""

    def may_change(self) -> bool:
        return self.shut is not Shut.BEFORE_CHANGE

    may_begin_boundary = may_change


class NeverRests(Place):
    """Parks at the boundary and does not say so."""

    def rest(self) -> None:
        self.dirty = False


class StaysAtBoundary(Place):
    """Leaves the boundary and still claims to be there."""

    def may_leave_boundary(self) -> bool:
        return self.shut is Shut.OPEN


class ParksTheDirty(Place):
    """Stops a step in its middle."""

    def may_change(self) -> bool:
        self.dirty = self.dirty or self.shut is not Shut.BEFORE_CHANGE
        return self.shut is not Shut.BEFORE_CHANGE

    may_begin_boundary = may_change


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
def test_a_broken_rule_is_found(rule: type[Place]) -> None:
    """The exploration itself can fail: each of these rules loses a step, tears one, or waits for ever."""

    def explore_all() -> None:
        for story in STORIES:
            explore(rule, story)

    with pytest.raises(Violation):
        explore_all()


# --- the lock ------------------------------------------------------------------------------------------------


class Trainer:
    """A real thread that steps through the gate until told to stop."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.state = [0, 0]
        self.ended: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.gate.open()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for index in range(2):
                    self.gate.before_change()
                    self.state[index] += 1
                self.gate.begin_boundary()
                self.gate.end_boundary()
        except SystemExit as error:
            self.ended = error


@pytest.mark.parametrize("how", list(Shut)[1:])
def test_a_thread_is_caught_at_a_boundary_again_and_again(how: Shut) -> None:
    """A thousand closings: both halves of the state are always those of the step that is named."""
    gate = Gate()
    with Trainer(gate) as trainer:
        last = -1
        for _ in range(1000):
            gate.close(how)
            step = gate.wait_steady(within(PATIENCE))
            assert step is not None
            assert trainer.state == [step, step]
            assert step >= last
            last = step
            gate.open()
    assert last > 0


def test_steps_are_not_lost_in_the_gate() -> None:
    """The count is the number of boundaries, however often the gate was shut."""
    gate = Gate()
    with Trainer(gate) as trainer:
        for _ in range(100):
            gate.close()
            assert gate.wait_steady(within(PATIENCE)) is not None
            gate.open()
    assert [gate.place.completed] * 2 == trainer.state


def test_closing_says_where_training_stands() -> None:
    """Shutting and reading are one act; the answer is a copy that does not move."""
    gate = Gate()
    gate.before_change()
    place = gate.close()
    assert (place.completed, place.dirty, place.shut) == (0, True, Shut.BEFORE_CHANGE)
    gate.begin_boundary()
    assert gate.wait_steady(within(0.0)) is None
    gate.open()
    gate.end_boundary()
    assert (gate.place.completed, place.completed) == (1, 0)


def test_a_wait_gives_up() -> None:
    """A step that never ends: the wait ends by its timeout, or when its reason is gone."""
    gate = Gate()
    gate.before_change()
    gate.close()
    assert gate.wait_steady(within(0.0)) is None
    assert gate.wait_steady(give_up=lambda: True) is None
    called_off = threading.Event()
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(gate.wait_steady(give_up=called_off.is_set)))
    thread.start()
    called_off.set()
    gate.wake()
    thread.join(PATIENCE)
    assert answers == [None]


def test_a_wait_has_no_more_time_than_is_left_by_now() -> None:
    """A deadline that moves earlier while a step goes on and on."""
    gate = Gate()
    gate.before_change()
    gate.close()
    left: list[float | None] = [None]
    asked = threading.Event()
    answers: list[int | None] = []

    def ask() -> float | None:
        asked.set()
        return left[0]

    thread = threading.Thread(target=lambda: answers.append(gate.wait_steady(ask)), daemon=True)
    thread.start()
    assert asked.wait(PATIENCE)
    left[0] = 0.0
    gate.wake()
    thread.join(PATIENCE)
    assert answers == [None]


def test_who_is_told_to_leave_leaves_where_it_is_parked() -> None:
    """A parked thread raises what it was given; so does one that comes later, and none gets through."""
    gate = Gate()
    with Trainer(gate) as trainer:
        gate.close()
        step = gate.wait_steady(within(PATIENCE))
        gate.leave(lambda: SystemExit(75))
        trainer.join()
        assert isinstance(trainer.ended, SystemExit)
        assert trainer.state == [step, step]
    with pytest.raises(SystemExit):
        gate.stand()


def test_a_dirty_thread_leaves_at_its_boundary() -> None:
    """In the middle of a step nobody is stopped: the step is completed first."""
    gate = Gate()
    gate.before_change()
    gate.leave(lambda: SystemExit(75))
    gate.before_change()
    gate.begin_boundary()
    with pytest.raises(SystemExit):
        gate.end_boundary()
    assert gate.place.completed == 1


def test_late_copies_are_made_only_when_wanted() -> None:
    """An open gate costs no copies; a shut one has them made before anybody may read."""
    gate, made = Gate(), []
    gate.end_boundary(lambda: made.append("nobody asked"))
    assert made == []
    gate.close(Shut.AT_BOUNDARY)

    def late() -> None:
        made.append("asked")
        assert gate.wait_steady(within(0.0)) is None
        gate.open()

    gate.before_change()
    gate.begin_boundary()
    gate.end_boundary(late)
    assert made == ["asked"]
    assert gate.place.completed == 2


def test_who_stands_at_a_boundary_by_hand_is_had_there() -> None:
    """`guard.save()` and `restore` stand at a boundary without a step: a save that waits for one gets it."""
    gate = Gate()
    gate.close(Shut.AT_BOUNDARY)
    done = threading.Event()

    def train() -> None:
        gate.begin_boundary()
        gate.arrive(7)
        gate.stand()
        done.set()

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    assert gate.wait_steady(within(PATIENCE)) == 7
    assert not done.is_set()
    gate.open()
    thread.join(PATIENCE)
    assert done.is_set()
    assert not gate.place.at_boundary


def test_who_copies_a_boundary_anew_by_hand_offers_that_one() -> None:
    """Not the next step: all ranks would wait for it, and who saves by hand trains no further."""
    gate = Gate(together=True)
    gate.arrive(4)
    gate.stand()
    gate.begin_again()
    assert gate.close(B).earliest() == 4
    assert gate.wait_steady(within(0.0)) is None
    gate.arrive()
    assert gate.wait_steady(within(0.0)) == 4
    gate.open()
    gate.stand()
    gate.begin_again()  # and is called away before it arrives
    gate.before_change()
    assert gate.close(B).earliest() == 5


def test_who_goes_back_to_the_beginning_is_had_there() -> None:
    """Step 0 is a step like any other, and none at all leaves the count as it is."""
    gate = Gate()
    gate.arrive(5)
    gate.arrive()
    assert gate.close(Shut.AT_BOUNDARY).completed == 5
    gate.arrive(0)
    assert gate.wait_steady(within(0.0)) == 0


def test_an_open_gate_holds_nobody() -> None:
    """Who stands at a boundary may leave it at any time while nobody has shut the gate."""
    gate = Gate()
    gate.arrive(3)
    assert gate.wait_steady(within(0.0)) is None
    gate.close(Shut.AT_BOUNDARY)
    assert gate.wait_steady(within(0.0)) == 3


# --- a target ---


@pytest.mark.parametrize("how", [B, A])
def test_who_is_behind_passes_until_the_target(how: Shut) -> None:
    """Step after step, also from where the gate has held it before; and at the target it is held."""
    gate = Gate()
    with Trainer(gate) as trainer:
        for _ in range(100):
            gate.close(how)
            assert gate.wait_steady(within(PATIENCE)) is not None
            target = gate.close(how).completed + 3
            gate.close(how, target)
            assert gate.wait_steady(within(PATIENCE)) == target
            assert trainer.state == [target, target]
            gate.open()


def test_a_target_that_is_reached_holds_as_any_shut_gate() -> None:
    """Before the next change, where the state is clean; and whoever is asked for a step that is over has that."""
    gate = Gate()
    gate.arrive(5)
    gate.stand()
    gate.close(B, 5)
    assert gate.wait_steady(within(0.0)) == 5
    assert not gate.place.may_change()
    gate.close(B, 4)
    assert gate.wait_steady(within(0.0)) == 5
    gate.close(B, 6)
    assert gate.wait_steady(within(0.0)) is None
    assert gate.place.may_change()


def test_a_boundary_short_of_the_target_is_left() -> None:
    """Who was parked there goes on; and no copies are made for it on the way."""
    place = Place()
    place.close(A)
    assert place.may_change()
    assert not place.complete()
    place.rest()
    assert not place.may_leave_boundary()
    place.close(A, 3)
    assert not place.steady()
    assert place.may_leave_boundary()
    assert place.may_change()
    assert place.complete()
    assert place.may_change()
    assert not place.complete()
    assert not place.steady()
    place.rest()
    assert place.steady()
    assert not place.may_leave_boundary()


def test_opening_and_closing_anew_forget_the_target() -> None:
    """It was agreed on for one save."""
    gate = Gate()
    gate.close(B, 7)
    gate.open()
    assert gate.close(B).target is None
    assert gate.wait_steady(within(0.0)) == 0


@pytest.mark.parametrize(
    ("place", "earliest"),
    [
        (Place(4, shut=B), 4),
        (Place(4, dirty=True, shut=B), 5),
        (Place(4, dirty=True, shut=B, resting=True), 4),
        (Place(4, at_boundary=True, shut=B), 4),
        (Place(4, shut=A), 5),
        (Place(4, dirty=True, shut=A), 5),
        (Place(4, dirty=True, shut=A, resting=True), 4),
        (Place(4, at_boundary=True, shut=A), 4),
    ],
)
def test_the_earliest_step_that_can_still_be_had(place: Place, earliest: int) -> None:
    """A clean state as it stands, a dirty one at its end; and of boundaries the one that is stood at, or the next."""
    assert place.earliest() == earliest


def test_the_earliest_step_is_the_one_that_is_had() -> None:
    """Whatever the training thread is at when the gate is shut; nothing else is waited for."""
    gate = Gate()
    with Trainer(gate):
        for turn in range(400):
            earliest = gate.close((B, A)[turn % 2]).earliest()
            assert gate.wait_steady(within(PATIENCE)) == earliest
            gate.open()


# --- waking --------------------------------------------------------------------------------------------------
# No wait below has a timeout of its own: who is not told waits for ever.


class Waiter:
    """A thread that waits for a steady state; it is in its wait when this is made."""

    def __init__(self, gate: Gate) -> None:
        self.answers: list[int | None] = []
        asked = threading.Event()

        def never() -> bool:  # called under the lock, which only the wait itself lets go
            asked.set()
            return False

        self._thread = threading.Thread(
            target=lambda: self.answers.append(gate.wait_steady(give_up=never)), name="waiter", daemon=True
        )
        self._thread.start()
        assert asked.wait(PATIENCE)

    def told(self) -> int | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.answers[0]


class Parked:
    """A thread that is parked before its change; it is in its wait when this is made."""

    def __init__(self, gate: Gate) -> None:
        self.ended: BaseException | None = None
        refused = threading.Event()

        class Watched(Place):
            def may_change(self) -> bool:
                may = Place.may_change(self)
                if not may:
                    refused.set()
                return may

        with gate._lock:
            gate.place = Watched(shut=gate.place.shut)
        self._gate = gate
        self._thread = threading.Thread(target=self._run, name="parked", daemon=True)
        self._thread.start()
        assert refused.wait(PATIENCE)
        with gate._lock:  # it has let go of the lock: it waits
            pass

    def _run(self) -> None:
        try:
            self._gate.before_change()
        except SystemExit as error:
            self.ended = error

    def went_on(self) -> bool:
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()


def test_who_waits_for_a_boundary_is_told_of_it() -> None:
    """Of one at the end of a step, and of one that is stood at by hand."""
    gate = Gate()
    gate.before_change()
    gate.close(Shut.AT_BOUNDARY)
    waiter = Waiter(gate)
    trainer = threading.Thread(target=gate.end_boundary, name="trainer", daemon=True)
    trainer.start()
    assert waiter.told() == 1
    gate.open()
    trainer.join(PATIENCE)
    assert not trainer.is_alive()
    gate.close(Shut.AT_BOUNDARY)
    waiter = Waiter(gate)
    gate.arrive(4)
    assert waiter.told() == 4


def test_who_waits_is_told_that_the_gate_is_shut_otherwise() -> None:
    """A clean state that was to come to a boundary is taken as it stands after all."""
    gate = Gate()
    gate.close(Shut.AT_BOUNDARY)
    waiter = Waiter(gate)
    gate.close(Shut.BEFORE_CHANGE)
    assert waiter.told() == 0


def test_who_is_parked_before_his_change_is_let_through_to_a_boundary() -> None:
    """The saver wants a boundary by now, and nobody else would bring one."""
    gate = Gate()
    gate.close()
    parked = Parked(gate)
    gate.close(Shut.AT_BOUNDARY)
    assert parked.went_on()
    assert gate.place.dirty


def test_a_gate_that_retires_lets_everybody_go_on() -> None:
    """Who is parked, and who comes later: nobody saves any more."""
    gate = Gate()
    gate.close()
    parked = Parked(gate)
    gate.retire()
    assert parked.went_on()
    assert parked.ended is None
    gate.before_change()
    gate.stand()
    assert gate.inert


def test_who_is_told_to_leave_changes_nothing_first() -> None:
    """Also where he could go on at that very moment."""
    gate = Gate()
    gate.close()
    parked = Parked(gate)
    with gate._changed:
        gate._leave = lambda: SystemExit(75)
        gate.place.close(Shut.AT_BOUNDARY)
        gate._changed.notify_all()
    assert parked.went_on()
    assert isinstance(parked.ended, SystemExit)
    assert not gate.place.dirty


@pytest.mark.parametrize("awaited", [True, False])
def test_who_is_told_to_leave_at_its_boundary_goes_on_to_where_others_wait(awaited: bool) -> None:
    """To its next change, if they are in collectives of that step; else it leaves where it stands."""
    gate, places = Gate(together=True), list[str]()

    def train() -> None:
        gate.before_change()
        places.append("changed")
        gate.end_boundary()
        places.append("went on")
        gate.before_change()

    def run() -> None:
        try:
            train()
        except SystemExit:
            places.append("left")

    gate.close(Shut.AT_BOUNDARY, 1, awaited=awaited)
    trainer = threading.Thread(target=run, name="trainer", daemon=True)
    trainer.start()
    assert gate.wait_steady(within(PATIENCE)) == 1
    gate.close(Shut.AT_BOUNDARY)  # another call, of which nothing is decided
    gate.leave(lambda: SystemExit(75))
    trainer.join(PATIENCE)
    assert places == ["changed", *(["went on"] if awaited else []), "left"]
    assert not gate.place.dirty


@pytest.mark.parametrize("boundary", [True, False], ids=["from its boundary", "from its change"])
def test_who_was_told_to_leave_changes_nothing_for_a_later_call(boundary: bool) -> None:
    """It is on its way to its next change, and another notice wants the step behind it."""
    gate, places = Gate(together=True), list[str]()
    went_on, decided = threading.Event(), threading.Event()

    def train() -> None:
        gate.before_change()
        gate.end_boundary()
        went_on.set()
        decided.wait(PATIENCE)
        gate.before_change()
        places.append("changed")

    def run() -> None:
        try:
            train()
        except SystemExit:
            places.append("left")

    if boundary:
        gate.close(Shut.AT_BOUNDARY, 1, awaited=True)
    trainer = threading.Thread(target=run, name="trainer", daemon=True)
    trainer.start()
    if boundary:
        assert gate.wait_steady(within(PATIENCE)) == 1
    else:
        assert went_on.wait(PATIENCE)
    gate.leave(lambda: SystemExit(75))
    assert went_on.wait(PATIENCE)
    gate.close(Shut.AT_BOUNDARY)
    gate.close(Shut.AT_BOUNDARY, 2, awaited=True)
    decided.set()
    trainer.join(PATIENCE)
    assert places == ["left"]
    assert (gate.place.completed, gate.place.dirty) == (1, False)


def test_in_a_forked_child_nothing_is_waited_for() -> None:
    """The lock may be held for ever there: an inert gate does not touch it."""
    gate = Gate()
    gate.close()
    gate.inert = True
    with gate._lock:
        gate.before_change()
        gate.begin_boundary()
        gate.end_boundary()
        gate.stand()
        gate.arrive(3)
    assert gate.place.completed == 0
