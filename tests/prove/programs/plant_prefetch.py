"""Plant: the next batch is fetched before the boundary."""

from __future__ import annotations

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(1200, 8), torch.randn(1200, 1))
loader = spotguard.ResumableLoader(StatefulDataLoader(data, batch_size=4, shuffle=True))
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
done = guard.restore()
batches = iter(loader)
x, y = next(batches)
for _ in range(done, 200):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
    x, y = next(batches)
    guard.step()
