"""Containers below a registered dict are filled in place, and a helper's dict of attributes is registered."""

from __future__ import annotations

import collections

import torch
from torch import nn

import spotguard


class Patience:
    def __init__(self) -> None:
        self.best, self.bad = float("inf"), 0

    def see(self, loss: float) -> float:
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        return 0.9**self.bad


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
patience = Patience()
window: collections.deque[float] = collections.deque(maxlen=3)
draws = torch.Generator().manual_seed(1)
guard = spotguard.register(
    model=model, optimizer=optimizer, patience=vars(patience), notes={"window": window, "draws": draws}
)
for _ in guard.steps(200):
    loss = (model(torch.randn(8, 4, generator=draws)) - 1).square().mean()
    window.append(loss.item())
    optimizer.zero_grad()
    (loss * patience.see(loss.item()) / sum(window)).backward()
    optimizer.step()
