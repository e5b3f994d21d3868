"""A training whose memory grows by MEGABYTES each second until the kernel ends it. `growing.py MEGABYTES`."""

from __future__ import annotations

import sys
import time

import torch

import spotguard

pace = int(sys.argv[1])
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters())
guard = spotguard.register(model=model, optimizer=optimizer)
kept = []
for _ in guard.steps(100_000):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    kept.append(torch.ones(pace << 17))  # of four bytes each: half of it, twice a second
    time.sleep(0.5)
