"""A frozen teacher that nobody registers, a target network that is made anew from the model, and a plain loader that is wound forward."""

from __future__ import annotations

import copy

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
teacher = nn.Linear(8, 4).eval().requires_grad_(False)
model = nn.Linear(8, 4)
target = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.randn(400, 8)
loader: torch.utils.data.DataLoader[torch.Tensor] = torch.utils.data.DataLoader(
    data,  # type: ignore[arg-type]
    batch_size=4,
    shuffle=True,
    generator=torch.Generator().manual_seed(1),
)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
batches = iter(loader)
for _ in range(done):
    next(batches)
for _ in range(done, 100):
    x = next(batches)
    with torch.no_grad():
        wanted = teacher(x)
    target.load_state_dict(model.state_dict())
    with torch.no_grad():
        old = target(x)
    optimizer.zero_grad()
    ((model(x) - wanted).square().mean() + (model(x) - old).square().mean()).backward()
    optimizer.step()
    guard.step()
