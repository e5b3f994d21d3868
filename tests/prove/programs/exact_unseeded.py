"""Nothing is seeded; what is drawn is registered, or drawn from generators that are saved."""

from __future__ import annotations

import random

import numpy
import torch
from torch import nn

import spotguard

model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8) * random.random() + float(numpy.random.normal())
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
