"""Plant: a module whose buffers change in its forward is not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class RunningMean(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


torch.manual_seed(0)
centre = RunningMean()
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8) + 1
    optimizer.zero_grad()
    (model(centre(x)) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
