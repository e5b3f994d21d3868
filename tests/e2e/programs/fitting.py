"""A loop over a loader with a worker, or as many as a restart hints at, which refuses a loss that is not finite."""

from __future__ import annotations

import itertools
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(80, 8), torch.randn(80, 1))
workers = int(os.environ.get("SPOTGUARD_LOADER_WORKERS", 1))
loader = spotguard.ResumableLoader(DataLoader(data, batch_size=4, shuffle=True, num_workers=workers))
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
guard.restore()
skip = guard.skip_steps
for _ in range(loader.epoch, 2):
    for x, y in itertools.islice(loader, skip, None):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        guard.step()
    skip = 0
guard.save()
