"""Plant: the learning rate follows the batch's number in the pass, which begins at 0 in a resumed pass."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(1200, 8), torch.randn(1200, 1))
loader = spotguard.ResumableLoader(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
guard.restore()
for number, (x, y) in enumerate(loader):
    optimizer.param_groups[0]["lr"] = 1e-2 / (number + 1)
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
    guard.step()
