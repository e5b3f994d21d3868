"""Plant: nothing is seeded, and a frozen projection that nobody registers is another one at each start."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

projection = torch.randn(8, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8) @ projection
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
