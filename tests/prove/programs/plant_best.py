"""Plant: a helper keeps the best loss and lowers the learning rate without a better one."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


class Patience:
    def __init__(self) -> None:
        self.best, self.bad = float("inf"), 0

    def see(self, loss: float, optimizer: torch.optim.Optimizer) -> None:
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        if self.bad >= 2:
            optimizer.param_groups[0]["lr"] *= 0.5
            self.bad = 0


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
patience = Patience()
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    patience.see(loss.item(), optimizer)
