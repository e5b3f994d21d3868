"""Plant: an average of the weights, kept in a dict of tensors, is not registered."""

from __future__ import annotations

import torch
from torch import nn

import spotguard


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
    guard = spotguard.register(model=model, optimizer=optimizer)
    for _ in guard.steps(200):
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        for name, value in model.named_parameters():
            shadow[name].lerp_(value.detach(), 0.1)


main()
