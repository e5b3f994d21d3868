"""Exact: a rate is lowered behind each epoch, and saved with the number of that epoch, so that no resumed run lowers it again."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

EPOCH = 4

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(40, 8)
progress = {"rate": 1e-2, "epochs": 0}
guard = spotguard.register(model=model, optimizer=optimizer, progress=progress)
done = guard.restore()
for epoch in range(max(done - 1, 0) // EPOCH, 10):
    for number in range(done - epoch * EPOCH, EPOCH):
        x = data[number * 4 : number * 4 + 4]
        optimizer.param_groups[0]["lr"] = progress["rate"]
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        guard.step()
    done = (epoch + 1) * EPOCH
    if progress["epochs"] == epoch:
        progress["rate"] /= 2
        progress["epochs"] = epoch + 1
    guard.save()
