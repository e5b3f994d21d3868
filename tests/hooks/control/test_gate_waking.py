"""Whatever changes at the gate, who waits for it is told."""

from __future__ import annotations

import threading
from types import FrameType

import pytest

from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import GateRule, Shut
from tests.hooks.control.gates import PATIENCE, within

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

        class Watched(GateRule):
            def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
                may = GateRule.may_change(self, thread, frame)
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


def test_a_waiter_for_a_boundary_is_told_of_it() -> None:
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


def test_a_waiter_is_told_that_the_gate_is_shut_otherwise() -> None:
    """A clean state that was to come to a boundary is taken as it stands after all."""
    gate = Gate()
    gate.close(Shut.AT_BOUNDARY)
    waiter = Waiter(gate)
    gate.close(Shut.BEFORE_CHANGE)
    assert waiter.told() == 0


def test_a_thread_parked_before_its_change_is_let_through_to_a_boundary() -> None:
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


def test_a_thread_that_is_told_to_leave_changes_nothing_first() -> None:
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
def test_a_thread_told_to_leave_at_its_boundary_goes_on_to_its_next_change(awaited: bool) -> None:
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
def test_a_thread_told_to_leave_changes_nothing_for_a_later_event(boundary: bool) -> None:
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
