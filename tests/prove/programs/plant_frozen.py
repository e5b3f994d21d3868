"""Plant: a layer is frozen at the start, and the turn that lets it train is not repeated after a resume."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(800, 8)
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(200):
    if step == 2:
        model[0].requires_grad_(True)
    x = data[4 * step : 4 * step + 4]
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
