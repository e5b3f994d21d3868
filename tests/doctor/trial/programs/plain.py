"""A loop with a loader, whose dataset sleeps for nobody; it trains for ever."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(512, 64)), batch_size=8)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
while True:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        guard.step()
