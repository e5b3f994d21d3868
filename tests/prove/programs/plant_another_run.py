"""Plant: every start restores from another run."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in range(guard.restore(run_id="base"), 200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    guard.step()
