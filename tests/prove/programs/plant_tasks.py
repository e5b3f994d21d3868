"""Plant: an endless iterator hands out the tasks."""

from __future__ import annotations

import itertools

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
tasks = itertools.cycle([0.0, 1.0, 2.0])
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    task = next(tasks)
    optimizer.zero_grad()
    (model(torch.randn(8, 4)) - task).square().mean().backward()
    optimizer.step()
