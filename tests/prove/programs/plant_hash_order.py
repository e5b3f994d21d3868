"""Plant: samples come in the order of a set of names."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
names = {f"sample {number}" for number in range(200)}
guard = spotguard.register(model=model, optimizer=optimizer)
order = list(names)
for step in guard.steps(200):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(int(order[step].split()[1])))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
