"""Plant: a thread changes the batches while training goes on."""

from __future__ import annotations

import threading

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
shift = torch.zeros(8)


def drift() -> None:
    while True:
        shift.add_(1e-3)


threading.Thread(target=drift, daemon=True).start()
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8) + shift
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
