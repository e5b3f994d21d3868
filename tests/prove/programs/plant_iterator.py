"""Plant: an iterator of the loader inside the registered one is made before `restore`."""

from __future__ import annotations

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(1200, 8), torch.randn(1200, 1))
loader = StatefulDataLoader(data, batch_size=4, shuffle=True)
batches = iter(loader)
guard = spotguard.register(model=model, optimizer=optimizer, loader=spotguard.ResumableLoader(loader))
for _ in guard.steps(200):
    x, y = next(batches)
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
