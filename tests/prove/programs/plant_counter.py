"""Plant: a Python counter decides what is trained, and is not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.data = torch.randn(800, 8)
        self.seen = 0

    def train(self, guard: spotguard.Guard) -> None:
        for _ in range(guard.restore(), 200):
            x = self.data[self.seen : self.seen + 4]
            self.optimizer.zero_grad()
            (self.model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            self.optimizer.step()
            self.seen += 4
            guard.step()


torch.manual_seed(0)
trainer = Trainer()
trainer.train(spotguard.register(model=trainer.model, optimizer=trainer.optimizer))
