"""A hidden state that is carried from step to step, in a registered tensor."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
cell, head = nn.GRUCell(8, 16), nn.Linear(16, 1)
optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-2)
hidden = torch.zeros(4, 16)
guard = spotguard.register(cell=cell, head=head, optimizer=optimizer, hidden=hidden)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    state = cell(x, hidden)
    optimizer.zero_grad()
    (head(state) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    hidden.copy_(state.detach())
