"""Plant: a plain loader is wound forward, and shuffles by torch's generator."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data: list[torch.Tensor] = list(torch.randn(200, 4, 8))
loader = torch.utils.data.DataLoader(data, batch_size=None, shuffle=True)  # type: ignore[arg-type,var-annotated]
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
batches = iter(loader)
for _ in range(done):
    next(batches)
for _ in range(done, 200):
    x = next(batches)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    guard.step()
