"""Plant: the dataset has a generator of its own, which begins anew."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spotguard

torch.manual_seed(0)


class Noisy(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.samples = torch.randn(64, 4)
        self.draws = random.Random(3)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.samples[number] * (1 + self.draws.random())


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
loader = DataLoader(Noisy(), batch_size=64)
guard = spotguard.register(model=model, optimizer=optimizer)
steps = guard.steps(200)
while True:
    for x in loader:
        next(steps)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
