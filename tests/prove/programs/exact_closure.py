"""LBFGS, whose step runs a closure several times."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(60):
    x = torch.randn(16, 8)

    def closure(x: torch.Tensor = x) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
