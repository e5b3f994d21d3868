"""Plant: the learning rate follows the time."""

from __future__ import annotations

import time

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
begun = time.time()
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + time.time() - begun)
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
