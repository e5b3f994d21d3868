"""The gate's lock between two real threads: who is caught stands at a boundary, and no step is lost."""

from __future__ import annotations

import threading

import pytest

from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import Shut
from tests.hooks.control.gates import PATIENCE, B, Trainer, within


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


def test_a_parked_thread_that_is_told_to_leave_raises_there() -> None:
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


def test_a_thread_at_a_boundary_by_hand_is_saved_there() -> None:
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


def test_a_boundary_copied_again_by_hand_is_the_one_offered() -> None:
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


def test_a_return_to_step_0_is_saved_at_step_0() -> None:
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
