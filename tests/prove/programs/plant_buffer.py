"""Plant: a replay buffer that nobody registers; batches are drawn from it."""

from __future__ import annotations

import collections
import random

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
random.seed(0)


class Agent:
    def __init__(self) -> None:
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.seen: collections.deque[tuple[torch.Tensor, float]] = collections.deque(maxlen=64)

    def learn(self) -> None:
        self.seen.extend((torch.randn(4), random.random()) for _ in range(4))
        batch = random.sample(list(self.seen), 4)
        x, y = torch.stack([each for each, _ in batch]), torch.tensor([value for _, value in batch])
        self.optimizer.zero_grad()
        (self.net(x)[:, 0] - y).square().mean().backward()
        self.optimizer.step()


agent = Agent()
guard = spotguard.register(net=agent.net, optimizer=agent.optimizer)
for _ in guard.steps(200):
    agent.learn()
