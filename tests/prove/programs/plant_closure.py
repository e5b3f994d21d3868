"""Plant: a closure counts the steps for the learning rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import spotguard


def schedule() -> Callable[[], float]:
    taken = 0

    def rate() -> float:
        nonlocal taken
        taken += 1
        return 0.1 / taken

    return rate


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rate = schedule()
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    for group in optimizer.param_groups:
        group["lr"] = rate()
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
