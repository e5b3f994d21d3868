"""Two models and two optimizers that step in turn."""

from __future__ import annotations

import torch
from torch import nn

import spotguard

torch.manual_seed(0)
maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
makers = torch.optim.Adam(maker.parameters(), lr=1e-3)
judges = torch.optim.RMSprop(judge.parameters(), lr=1e-3)
guard = spotguard.register(maker=maker, judge=judge, makers=makers, judges=judges)
for _ in guard.steps(200):
    true, false = torch.randn(4, 8), maker(torch.randn(4, 4))
    judges.zero_grad()
    (judge(false.detach()).mean() - judge(true).mean()).backward()
    judges.step()
    makers.zero_grad()
    (-judge(false).mean()).backward()
    makers.step()
