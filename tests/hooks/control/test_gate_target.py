"""A gate that is shut for a target lets pass until that step, and holds there."""

from __future__ import annotations

import pytest

from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import GateRule, Shut
from tests.hooks.control.gates import PATIENCE, A, B, Trainer, within


@pytest.mark.parametrize("how", [B, A])
def test_a_rank_behind_passes_the_gate_until_the_target(how: Shut) -> None:
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
    place = GateRule()
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
        (GateRule(4, shut=B), 4),
        (GateRule(4, dirty=True, shut=B), 5),
        (GateRule(4, dirty=True, shut=B, resting=True), 4),
        (GateRule(4, at_boundary=True, shut=B), 4),
        (GateRule(4, shut=A), 5),
        (GateRule(4, dirty=True, shut=A), 5),
        (GateRule(4, dirty=True, shut=A, resting=True), 4),
        (GateRule(4, at_boundary=True, shut=A), 4),
    ],
)
def test_the_earliest_step_that_can_still_be_had(place: GateRule, earliest: int) -> None:
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
