"""Batches by the number of the step, and much that is only for a log: times, averages, a history, a bar. None of it is registered."""

from __future__ import annotations

import collections
import os
import time
import uuid

import torch
from torch import nn

import spotguard


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    notes = {"best": float("inf"), "started": time.time()}
    guard = spotguard.register(model=model, optimizer=optimizer, notes=notes)
    name, begun = uuid.uuid4().hex, time.time()
    history: list[float] = []
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=5)
    average, seen = 0.0, 0
    done = guard.restore()
    with open("log.txt", "a") as log:
        for step in range(done, 200):
            optimizer.zero_grad()
            loss = (model(batch(step)) - batch(step).sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            seen += 4
            history.append(loss.item())
            recent.append(loss.detach())
            average = 0.9 * average + 0.1 * loss.item()
            notes["best"] = min(notes["best"], loss.item())
            rate = seen / (time.time() - begun)
            print(name, os.getpid(), step, average, rate, file=log, flush=True)
            guard.step()


main()
