"""Plant: a dict has a teacher that is not registered."""

from __future__ import annotations

import copy

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(4, 2)
nets = {"student": model, "teacher": copy.deepcopy(model).requires_grad_(False)}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    (model(x) - nets["teacher"](x) - 0.1).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mean, weight in zip(nets["teacher"].parameters(), model.parameters(), strict=True):
            mean.lerp_(weight, 0.1)
