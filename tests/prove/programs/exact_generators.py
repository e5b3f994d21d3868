"""Generators of the script's own, each registered with its state."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn

import spotguard


class Draws:
    def __init__(self) -> None:
        self.torch = torch.Generator().manual_seed(1)
        self.numpy = numpy.random.default_rng(2)
        self.python = random.Random(3)

    def state_dict(self) -> dict[str, Any]:
        return {
            "torch": self.torch.get_state(),
            "numpy": self.numpy.bit_generator.state,
            "python": self.python.getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.torch.set_state(state["torch"])
        self.numpy.bit_generator.state = state["numpy"]
        self.python.setstate(state["python"])


torch.manual_seed(0)
draws = Draws()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
guard = spotguard.register(model=model, optimizer=optimizer, draws=draws)
for _ in guard.steps(200):
    x = torch.randn(4, 8, generator=draws.torch) * draws.python.random()
    x = x + torch.from_numpy(draws.numpy.normal(size=8)).float()
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
