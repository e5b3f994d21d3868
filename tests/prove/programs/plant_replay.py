"""Plant: a policy learns from a memory, and neither the memory nor the state of its world is registered."""

from __future__ import annotations

import collections

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
memory: collections.deque[tuple[torch.Tensor, float]] = collections.deque(maxlen=50)
place = torch.zeros(2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    place = (place + torch.randn(2) * model(place).detach()).clamp(-1, 1)
    memory.append((place, float(place.sum())))
    chosen = [memory[int(at)] for at in torch.randint(len(memory), (4,))]
    optimizer.zero_grad()
    values = model(torch.stack([each for each, _ in chosen])).amax(1)
    (values - torch.tensor([each for _, each in chosen])).square().mean().backward()
    optimizer.step()
