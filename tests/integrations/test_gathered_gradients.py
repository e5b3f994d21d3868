"""Gradients of a manual optimization: a boundary waits for those that a step will use, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.integrations.lightning_gradients import GatheredGradients

pytestmark = pytest.mark.torch


class Pair:
    """A generator, a critic and their optimizers, as a Trainer has them."""

    def __init__(self) -> None:
        self.generator, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)
        self.both = nn.Sequential(self.generator, self.critic)
        self.optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (self.critic, self.generator)]
        wrappers = [SimpleNamespace(zero_grad=each.zero_grad) for each in self.optimizers]
        self.gathered = GatheredGradients(
            SimpleNamespace(
                optimizers=self.optimizers,
                strategy=SimpleNamespace(_lightning_optimizers=wrappers),
                lightning_module=SimpleNamespace(automatic_optimization=False),
            )
        )

    def backward(self) -> None:
        self.both(torch.ones(1, 2)).sum().backward()

    def zero_in_place(self) -> None:
        self.both.zero_grad(set_to_none=False)

    def zero_by_hand(self) -> None:
        for each in self.both.parameters():
            if each.grad is not None:
                each.grad.zero_()

    def drop(self) -> None:
        self.both.zero_grad()


ZEROINGS = [Pair.zero_in_place, Pair.zero_by_hand, Pair.drop]


@pytest.mark.parametrize("zero", ZEROINGS)
def test_gradients_that_are_zeroed_behind_a_step_hold_no_boundary_back(zero: Callable[[Pair], None]) -> None:
    pair = Pair()
    for _ in range(3):
        pair.backward()
        for each in pair.optimizers:
            each.step()
        zero(pair)
        assert not pair.gathered.count_here()


@pytest.mark.parametrize("zero", ZEROINGS)
def test_gradients_that_are_zeroed_before_the_next_backward_pass_hold_no_second_boundary_back(
    zero: Callable[[Pair], None],
) -> None:
    pair = Pair()
    counted = []
    for _ in range(4):
        for each in pair.optimizers:  # the generator's pass fills the critic's
            zero(pair)
            pair.backward()
            each.step()
        counted.append(pair.gathered.count_here())
    assert counted == [True, False, False, False]


def test_gradients_that_a_later_step_uses_hold_a_boundary_back() -> None:
    pair = Pair()
    critic, generator = pair.optimizers
    counted = []
    for batch in range(6):
        pair.backward()
        generator.step()
        generator.zero_grad(set_to_none=False)
        if batch % 3 == 2:
            critic.step()
            critic.zero_grad(set_to_none=False)
        counted.append(pair.gathered.count_here())
    assert counted == [True, True, False] * 2


def test_dropped_gradients_before_a_step_without_any_do_not_count() -> None:
    pair = Pair()
    pair.backward()
    assert pair.gathered.count_here()
    pair.drop()
    for each in pair.optimizers:
        each.step()
    pair.backward()
    assert not pair.gathered.count_here()
