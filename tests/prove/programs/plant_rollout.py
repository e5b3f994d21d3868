"""Plant: a policy acts before it trains in each turn, in an environment with a generator of its own."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class World:
    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(3)
        self.at = torch.zeros(8)

    def step(self, action: torch.Tensor) -> torch.Tensor:
        self.at = 0.9 * self.at + torch.randn(8, generator=self.rng) + 0.1 * action
        return self.at


torch.manual_seed(0)
policy = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
world = World()
guard = spotguard.register(policy=policy, optimizer=optimizer)
for _ in guard.steps(200):
    seen = []
    with torch.no_grad():
        for _ in range(4):
            seen.append(world.step(policy(world.at) + torch.randn(1)))
    optimizer.zero_grad()
    policy(torch.stack(seen)).square().mean().backward()
    optimizer.step()
