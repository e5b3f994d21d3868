"""Plant: a sampler's state_dict leaves its position out."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Sampler:
    def __init__(self) -> None:
        self.at = self.epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]

    def take(self, data: torch.Tensor) -> torch.Tensor:
        x = data[self.at : self.at + 4]
        self.at += 4
        if self.at == len(data):
            self.at, self.epoch = 0, self.epoch + 1
        return x


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data, sampler = torch.randn(80, 8), Sampler()
guard = spotguard.register(model=model, optimizer=optimizer, sampler=sampler)
for _ in guard.steps(200):
    x = sampler.take(data)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
