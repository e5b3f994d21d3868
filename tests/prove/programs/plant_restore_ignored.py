"""Plant: what `restore` returns is not used."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
guard.restore()
for step in range(200):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 / (1 + step)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    guard.step()
