"""Plant: the boundary stands at the top of the turn."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in range(guard.restore(), 200):
    guard.step()
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
