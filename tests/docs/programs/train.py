"""The train.py of every page that shows none of its own: it trains until it is told to go."""

from __future__ import annotations

import threading

import torch
from torch import nn

import spotguard

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

#: Never set: ten milliseconds a step leave the processor to the page's other commands.
pause = threading.Event()
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(10**9):
    x = torch.randn(64, 64)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pause.wait(0.01)
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
