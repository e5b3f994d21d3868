"""Unregistered schedulers that a script winds forward itself: they are named too, for few kinds give the same bits then."""

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


def stepped(optimizer: Optimizer, done: int) -> lr_scheduler.StepLR:
    wound = lr_scheduler.StepLR(optimizer, 3)
    for _ in range(done):
        wound.step()
    return wound


def previewed(optimizer: Optimizer, done: int) -> lr_scheduler.LinearLR:
    other = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    wound = lr_scheduler.LinearLR(other)
    for _ in range(done):
        wound.step()
    lr_scheduler.LinearLR(other, last_epoch=done)
    return lr_scheduler.LinearLR(optimizer)


WOUND: dict[str, Make] = {
    "StepLR": stepped,
    "ExponentialLR": lambda o, done: lr_scheduler.ExponentialLR(o, 0.9, last_epoch=done - 1),
    "CosineAnnealingLR": lambda o, done: handed_on(o, last_epoch=done - 1),
    "SequentialLR": sequence,
    "LinearLR": previewed,
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("kind", WOUND)
def test_scheduler_that_the_script_winds_forward_is_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "initial_lr": 0.1}], lr=0.1)
    with guarded(WatchedStore(), {"model": model, "optimizer": optimizer}) as guard:
        done = guard.restore()
        scheduler = WOUND[kind](optimizer, done)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            guard.step()

        for _ in range(4):
            step()
    (line,) = said(caplog)
    assert line.startswith(f"a scheduler of optimizer is not registered ({kind}), so a resumed run")
