"""Plant: one step sets a layer's mode."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(200):
    if step == 2:
        model[1].eval()
    optimizer.zero_grad()
    (model(torch.randn(8, 4)) - 1).square().mean().backward()
    optimizer.step()
