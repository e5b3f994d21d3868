"""Plant: a generator function counts by itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

import spotguard


def batches(data: torch.Tensor) -> Iterator[torch.Tensor]:
    at = 0
    while True:
        yield data[at : at + 4]
        at += 4


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = batches(torch.randn(800, 8))
    guard = spotguard.register(model=model, optimizer=optimizer)
    for _ in guard.steps(200):
        x = next(source)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


main()
