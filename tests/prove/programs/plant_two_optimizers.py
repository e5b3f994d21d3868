"""Plant: the second of two optimizers gathers gradients over three turns."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model, critic = nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
slow = torch.optim.SGD(critic.parameters(), lr=1e-2)
guard = spotguard.register(model=model, critic=critic, optimizer=optimizer, slow=slow)
for turn in guard.steps(200):
    critic(model(torch.randn(4, 8))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if turn % 3 == 2:
        slow.step()
        slow.zero_grad()
