"""Plant: an average of the weights by hand, whose module is in another mode after an evaluation."""

from __future__ import annotations

import copy

import torch
from torch import nn

import spotguard


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


class Average:
    def __init__(self, net: Net) -> None:
        self.net = copy.deepcopy(net)

    def update(self, net: Net) -> None:
        for mine, theirs in zip(self.net.parameters(), net.parameters(), strict=True):
            mine.data.lerp_(theirs.data, 0.1)


torch.manual_seed(0)
model = Net()
average = Average(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = spotguard.register(model=model, optimizer=optimizer)
for step in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    average.update(model)
    if step == 2:
        average.net.eval()
        with torch.no_grad():
            average.net(x)
