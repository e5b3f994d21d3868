"""Plant: the run id is another one at each start."""

from __future__ import annotations

import os

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(run_id=f"run-{os.getpid()}", model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
