"""Changes between a script's restore and its loop: named where a resumed run is another one, and exact twins log nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Training:
    """A model whose training draws, and its optimizer."""

    def __init__(self) -> None:
        seed()
        self.model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def turn(self, data: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(3, 4) if data is None else data).square().mean().backward()
        self.optimizer.step()


Script = Callable[[Training, Guard], None]


def seeds(training: Training, guard: Guard) -> None:
    start = guard.restore()
    torch.manual_seed(1)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def draws(training: Training, guard: Guard) -> None:
    start = guard.restore()
    data = torch.randn(3, 4)
    for _ in range(start, 3):
        training.turn(data)
        guard.step()


def shuffles(training: Training, guard: Guard) -> None:
    guard.restore()
    order = [1, 2, 3]
    random.shuffle(order)
    for _ in guard.steps(3):
        training.turn()


def initializes(training: Training, guard: Guard) -> None:
    start = guard.restore()
    nn.init.zeros_(training.model[0].bias)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def loads(training: Training, guard: Guard) -> None:
    start = guard.restore()
    with torch.no_grad():
        training.model[0].load_state_dict(nn.Linear(4, 4).state_dict())
    for _ in range(start, 3):
        training.turn()
        guard.step()


def forgets_moments(training: Training, guard: Guard) -> None:
    start = guard.restore()
    training.optimizer.state.clear()
    for _ in range(start, 3):
        training.turn()
        guard.step()


def copies(training: Training, guard: Guard) -> None:
    start = guard.restore()
    teacher = copy.deepcopy(training.model)
    for _ in range(start, 3):
        training.turn(teacher[0](torch.ones(3, 4)).detach())
        guard.step()


def lowers_the_rates(training: Training, guard: Guard) -> None:
    start = guard.restore()
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.5
    for _ in range(start, 3):
        training.turn()
        guard.step()


def sets_rates_that_the_loop_changes(training: Training, guard: Guard) -> None:
    start = guard.restore()
    for group in training.optimizer.param_groups:
        group["lr"] = 0.1
    for number in range(start, 3):
        training.turn()
        for group in training.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + number)
        guard.step()


def initializes_each_layer(training: Training, guard: Guard) -> None:
    start = guard.restore()
    for layer in training.model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def zero(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.bias)


def applies_an_initialization(training: Training, guard: Guard) -> None:
    start = guard.restore()
    training.model.apply(zero)
    for _ in range(start, 3):
        training.turn()
        guard.step()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (seeds, "torch.manual_seed() between guard.restore() and the loop"),
        (draws, "torch.randn() between guard.restore() and the loop"),
        (shuffles, "random.shuffle() between guard.restore() and the loop"),
        (initializes, "model is changed between guard.restore() and the loop"),
        (loads, "model is changed between guard.restore() and the loop"),
        (forgets_moments, "optimizer is changed between guard.restore() and the loop"),
        (copies, "a copy of model is made between guard.restore() and the loop"),
        (lowers_the_rates, "optimizer is changed between guard.restore() and the loop"),
        (sets_rates_that_the_loop_changes, "optimizer is changed between guard.restore() and the loop"),
        (initializes_each_layer, "model is changed between guard.restore() and the loop"),
        (applies_an_initialization, "model is changed between guard.restore() and the loop"),
    ],
)
def test_change_that_a_resumed_run_makes_again_is_named(
    script: Script, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, caplog)[0].startswith(f"{words} (test_behind_restore.py:")


# --- exact twins ---


def seeds_before(training: Training, guard: Guard) -> None:
    torch.manual_seed(1)
    nn.init.zeros_(training.model[0].bias)
    data, _ = torch.randn(3, 4), copy.deepcopy(training.model)
    start = guard.restore()
    for _ in range(start, 3):
        training.turn(data)
        guard.step()


def begins_under_a_condition(training: Training, guard: Guard) -> None:
    start = guard.restore()
    if start == 0:
        torch.manual_seed(1)
        nn.init.zeros_(training.model[0].bias)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def draws_from_its_own(training: Training, guard: Guard) -> None:
    start = guard.restore()
    data = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(start, 3):
        training.turn(data)
        guard.step()


def sets_modes(training: Training, guard: Guard) -> None:
    start = guard.restore()
    training.model.train()
    training.optimizer.zero_grad()
    shown = copy.deepcopy(training.model)
    print(shown)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def draws_in_the_loop(training: Training, guard: Guard) -> None:
    for _ in range(guard.restore(), 3):
        training.turn(torch.randn(3, 4))
        guard.step()


def draws_nothing_in_training(training: Training, guard: Guard) -> None:
    training.model[1].p = 0.0
    start = guard.restore()
    data = torch.randn(3, 4)
    for _ in range(start, 3):
        training.turn(data)
        guard.step()


def sets_a_rate_that_stays(training: Training, guard: Guard) -> None:
    start = guard.restore()
    for group in training.optimizer.param_groups:
        group["lr"] = 0.1
    for _ in range(start, 3):
        training.turn()
        guard.step()


def draws_again_what_was_drawn(training: Training, guard: Guard) -> None:
    start = guard.restore()
    for _ in range(start):
        torch.randn(3, 4)
    for _ in range(start, 3):
        training.turn()
        guard.step()


def freeze(layer: nn.Module) -> None:
    layer.requires_grad_(requires_grad=True)


def prints_each_layer(training: Training, guard: Guard) -> None:
    start = guard.restore()
    training.model.apply(freeze)
    for layer in training.model.modules():
        if isinstance(layer, nn.Linear):
            print(layer.bias.sum())
    for _ in range(start, 3):
        training.turn()
        guard.step()


@pytest.mark.parametrize(
    "script",
    [
        sets_a_rate_that_stays,
        prints_each_layer,
        draws_again_what_was_drawn,
        seeds_before,
        begins_under_a_condition,
        draws_from_its_own,
        sets_modes,
        draws_in_the_loop,
        draws_nothing_in_training,
    ],
)
def test_change_that_changes_no_resumed_run_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, caplog) == []


def lines(script: Script, caplog: pytest.LogCaptureFixture) -> list[str]:
    training = Training()
    with guarded(WatchedStore(), vars(training)) as guard:
        script(training, guard)
    return [each for each in said(caplog) if "between guard.restore() and the loop" in each]
