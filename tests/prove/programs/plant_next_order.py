"""Plant: a loader that is not registered begins its pass anew, in the order of the next one."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4, shuffle=True)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
while done < 200:
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        guard.step()
        done += 1
