"""Plant: the registered dict is replaced by another one."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(800, 8)
notes = {"at": 0}
guard = spotguard.register(model=model, optimizer=optimizer, notes=notes)
for _ in guard.steps(200):
    x = data[notes["at"] : notes["at"] + 4]
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    notes = {"at": notes["at"] + 4}
