"""Plant: the seed is set after `restore`."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

model = nn.Linear(8, 1)
with torch.no_grad():
    model.weight.fill_(0.1)
    model.bias.zero_()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
torch.manual_seed(0)
for _ in range(done, 200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    guard.step()
