"""Plant: the gradient scaler is not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=3)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
