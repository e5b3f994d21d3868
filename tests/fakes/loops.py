"""Training loops of two small networks and two optimizers, for what their order of steps and boundaries shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.fakes.clock import ManualClock
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore


class Pair:
    """Two layers, one behind the other, each with an optimizer of its own."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)
        self.oa, self.ob = optimizer(self.a.parameters()), optimizer(self.b.parameters())

    @property
    def values(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"oa": self.oa, "ob": self.ob}

    def backward(self, number: int = 0) -> torch.Tensor:
        """Gradients anew."""
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
        for layer in (self.a, self.b):
            layer.zero_grad()
        loss: torch.Tensor = self.b(self.a(x)).square().mean()
        loss.backward()
        return loss

    def turn(self, number: int = 0) -> None:
        """One whole turn of both optimizers."""
        self.backward(number)
        self.oa.step()
        self.ob.step()


class Wrapper(torch.optim.Optimizer):
    """One that gives the state and the groups of another one as its own, as Accelerate's does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self.state, self.param_groups, self.defaults = inner.state, inner.param_groups, inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


@contextmanager
def watched(
    values: Mapping[str, Any], clock: ManualClock | None = None, store: WatchedStore | None = None
) -> Iterator[Guard]:
    """A guard on a clock that the test moves, over a store in memory."""
    with guarded(store or WatchedStore(), values, clock=clock or ManualClock()) as guard:
        yield guard


def said(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> list[str]:
    """What spotguard has logged, from this level on."""
    return [
        each.getMessage() for each in caplog.records if each.name == "spotguard" and each.levelno >= least
    ]
