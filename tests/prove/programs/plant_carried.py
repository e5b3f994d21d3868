"""Plant: a hidden state is carried from step to step, and not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


def main() -> None:
    torch.manual_seed(0)
    cell, head = nn.GRUCell(8, 16), nn.Linear(16, 1)
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-2)
    guard = spotguard.register(cell=cell, head=head, optimizer=optimizer)
    done = guard.restore()
    hidden = torch.zeros(4, 16)
    for _ in range(done, 200):
        x = torch.randn(4, 8)
        hidden = cell(x, hidden.detach())
        optimizer.zero_grad()
        (head(hidden) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        guard.step()


main()
