"""Scripts of a few turns. What these call stands beside them, as a script's own modules do: elsewhere it would not be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore


class Training:
    """A layer, its optimizer and a dict."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.kept: dict[str, Any] = {"scores": torch.zeros(3, 2), "moves": 0}
        self.values = {"model": self.model, "optimizer": self.optimizer, "kept": self.kept}

    def output(self) -> torch.Tensor:
        return self.model(torch.randn(3, 4))  # type: ignore[no-any-return]

    def learn(self, loss: Any) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate


#: The loop of a script, which trains these values under a guard.
Script = Callable[[Training, Guard], None]


def lines(script: Script, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that a run of a script logs, from its first step on."""
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    return said(caplog)
