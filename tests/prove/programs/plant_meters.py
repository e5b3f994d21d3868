"""Plant: helpers in a dict weigh two losses."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Average:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1


torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
meters = {"left": Average(), "right": Average()}
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    losses = (model(torch.randn(8, 4)) - 1).square().mean(0)
    for name, loss in zip(meters, losses, strict=True):
        meters[name].add(loss.item())
    weights = torch.tensor([each.count / each.sum for each in meters.values()])
    optimizer.zero_grad()
    (losses * weights).sum().backward()
    optimizer.step()
