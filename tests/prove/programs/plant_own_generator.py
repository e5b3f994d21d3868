"""Plant: a generator of numpy's is not registered."""

from __future__ import annotations

import numpy
import torch
from torch import nn

import spotguard

torch.manual_seed(0)
draws = numpy.random.default_rng(3)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.from_numpy(draws.normal(size=(4, 8))).float()
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
