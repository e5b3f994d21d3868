"""Plant: a loader that nobody registered, in a function that draws from it without end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data: list[torch.Tensor] = list(torch.randn(200, 4, 8))


def endless(dl: torch.utils.data.DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    while True:
        yield from dl


dl = endless(torch.utils.data.DataLoader(data, batch_size=None))  # type: ignore[arg-type]
guard = spotguard.register(model=model, optimizer=optimizer)
for _ in guard.steps(200):
    x = next(dl)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
