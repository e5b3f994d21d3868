"""Plant: one step adds a layer."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(200):
    if step == 2:
        model.append(nn.Linear(4, 4))
        optimizer.add_param_group({"params": model[2].parameters()})
    optimizer.zero_grad()
    (model(torch.randn(8, 4)) - 1).square().mean().backward()
    optimizer.step()
