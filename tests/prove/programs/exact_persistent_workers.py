"""Workers stay, and draw nothing; two loaders in a `zip`."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(12, 4))
one = spotguard.ResumableLoader(
    DataLoader(data, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
)
other = spotguard.ResumableLoader(DataLoader(data, batch_size=4, shuffle=True))
guard = spotguard.register(model=model, optimizer=optimizer, one=one, other=other)
guard.restore()
for epoch in range(one.epoch, 60):
    for number, ((x,), (y,)) in enumerate(zip(one, other, strict=True), one.position):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + epoch * len(one) + number)
        optimizer.zero_grad()
        (model(x) - model(y) - 1).square().mean().backward()
        optimizer.step()
        guard.step()
