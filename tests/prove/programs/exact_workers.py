"""A shuffled loader whose workers stay from pass to pass, over several passes."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(12, 8), torch.randn(12, 1))
inner = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
loader = spotguard.ResumableLoader(inner)
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
guard.restore()
while loader.epoch < 4:
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        guard.step()
