"""Plant: a registered wrapper of an optimizer keeps slow weights that its state_dict leaves out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import spotguard


class Lookahead:
    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.count = base, 0
        self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]

    def step(self) -> None:
        self.base.step()
        self.count += 1
        if self.count % 3 == 0:
            fast = [p for group in self.base.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, fast, strict=True):
                slow.lerp_(p.detach(), 0.5)
                p.data.copy_(slow)


torch.manual_seed(0)
model = nn.Linear(8, 1)
base = torch.optim.AdamW(model.parameters(), lr=1e-2)
ahead = Lookahead(base)
guard = spotguard.register(model=model, base=base, ahead=ahead)
for _ in guard.steps(200):
    x = torch.randn(4, 8)
    base.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    ahead.step()
