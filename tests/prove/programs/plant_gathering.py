"""Plant: the boundary comes at each micro-batch."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for turn in guard.steps(200):
    x = torch.randn(4, 8)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    if turn % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
