"""Plant: of two loaders in a `zip`, one is not registered."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
samples = TensorDataset(torch.randn(800, 4))
labeled = spotguard.ResumableLoader(DataLoader(samples, batch_size=4, shuffle=True))
unlabeled = DataLoader(samples, batch_size=4, shuffle=True)
guard = spotguard.register(model=model, optimizer=optimizer, labeled=labeled)
guard.restore()
for (x,), (y,) in zip(labeled, unlabeled, strict=True):
    optimizer.zero_grad()
    (model(x) - model(y) - 1).square().mean().backward()
    optimizer.step()
    guard.step()
