"""Plant: a buffer that is not persistent changes in the forward."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Warming(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(1.01)
        found: torch.Tensor = self.linear(x * self.scale)
        return found


torch.manual_seed(0)
model = Warming()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
