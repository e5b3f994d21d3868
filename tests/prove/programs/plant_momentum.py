"""Plant: a momentum by hand is not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(8, 1)
        self.momentum = [torch.zeros_like(each) for each in self.model.parameters()]

    def train(self) -> None:
        guard = spotguard.register(model=self.model)
        for _ in guard.steps(200):
            x = torch.randn(4, 8)
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            weights = list(self.model.parameters())
            with torch.no_grad():
                for weight, moved, slope in zip(
                    weights, self.momentum, torch.autograd.grad(loss, weights), strict=True
                ):
                    weight.sub_(0.01 * moved.mul_(0.9).add_(slope))


torch.manual_seed(0)
Trainer().train()
