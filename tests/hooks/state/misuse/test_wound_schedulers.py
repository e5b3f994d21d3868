"""Unregistered schedulers that a script makes from the number of the step: only what is not wound forward is named.

The source of the loop decides, so these have a file of their own: it makes each class in one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LambdaLR

from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

Make = Callable[[Optimizer, int], Any]


def handed_on(optimizer: Optimizer, last_epoch: int = -1) -> lr_scheduler.CosineAnnealingLR:
    return lr_scheduler.CosineAnnealingLR(optimizer, 9, last_epoch=last_epoch)


def sequence(optimizer: Optimizer, done: int) -> lr_scheduler.SequentialLR:
    parts: list[lr_scheduler.LRScheduler] = [
        LambdaLR(optimizer, lambda step: 1 / (1 + step)) for _ in range(2)
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [3], last_epoch=done - 1)


def stepped(optimizer: Optimizer, done: int) -> lr_scheduler.LinearLR:
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    wound = lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 8)
    for _ in range(done):
        wound.step()
    return wound


WOUND: dict[str, Make] = {
    "LambdaLR": lambda o, done: LambdaLR(o, lambda step: 1 / (1 + step), done - 1),
    "StepLR": lambda o, done: lr_scheduler.StepLR(o, 3, last_epoch=done - 1),
    "OneCycleLR": lambda o, done: lr_scheduler.OneCycleLR(o, 0.1, 40, last_epoch=done - 1),
    "stepped": stepped,
    "by a function": lambda o, done: handed_on(o, last_epoch=done - 1),
}
BEGUN_ANEW: dict[str, Make] = {
    "ExponentialLR": lambda o, done: lr_scheduler.ExponentialLR(o, 0.9, last_epoch=-1),
    "CosineAnnealingWarmRestarts": lambda o, done: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 1, 0.0),
    "SequentialLR": sequence,
}


def weights(store: WatchedStore, make: Make, until: int) -> torch.Tensor:
    """Train in another life, up to the boundary of a step."""
    seed()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guarded(store, {"model": model, "optimizer": optimizer}) as guard:
        done = guard.restore()
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", 0.1)
        scheduler = make(optimizer, done)
        for _ in range(done, until):
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            guard.step()
        guard.save()
    return model.weight.detach().clone()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("kind", WOUND)
def test_scheduler_made_from_the_number_of_the_step_is_not_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    weights(store, WOUND[kind], 4)
    assert torch.equal(weights(store, WOUND[kind], 9), weights(WatchedStore(), WOUND[kind], 9))
    assert said(caplog) == []


@pytest.mark.parametrize("kind", BEGUN_ANEW)
def test_scheduler_made_without_the_number_of_the_step_is_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    weights(WatchedStore(), BEGUN_ANEW[kind], 4)
    (line,) = said(caplog)
    assert line.startswith(f"a scheduler of optimizer is not registered ({kind}), so a resumed run")
