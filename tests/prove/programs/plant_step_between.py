"""Plant: the boundary stands between two optimizers' steps."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
a, b = nn.Linear(32, 32), nn.Linear(32, 1)
oa, ob = torch.optim.AdamW(a.parameters()), torch.optim.AdamW(b.parameters())
guard = spotguard.register(a=a, b=b, oa=oa, ob=ob)
for _ in range(guard.restore(), 200):
    x = torch.randn(8, 32)
    oa.zero_grad()
    ob.zero_grad()
    (b(a(x)) - x.sum(1, keepdim=True)).square().mean().backward()
    oa.step()
    guard.step()
    ob.step()
