"""Plant: `itertools.cycle` over the batches begins anew."""

from __future__ import annotations

import itertools

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
batches = itertools.cycle([torch.randn(8, 4) for _ in range(7)])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    optimizer.zero_grad()
    model(next(batches)).square().mean().backward()
    optimizer.step()
