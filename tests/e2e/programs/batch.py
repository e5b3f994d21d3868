"""A training script as a batch job runs it, for one process: `batch.py STEPS LIMIT`. Nobody types: no step is begun beyond the
number in the file LIMIT.

Said on stdout: `restored STEP`, `step STEP LOSS` with every bit of it, `done`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import spotguard


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def train(steps: int, limit: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 50), nn.Dropout(0.2), nn.GELU(), nn.Linear(50, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = spotguard.register(model=model, optimizer=optimizer)
    done = guard.restore()
    tell(f"restored {done}")
    pause = threading.Event()
    for step in range(done, steps):
        while step >= int(limit.read_text() or 0):
            pause.wait(0.05)
        x = torch.randn(24, 8)
        loss = (model(x) - x.sum(1, keepdim=True).sin()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.step()
        tell(f"step {step + 1} {loss.item().hex()}")
    tell("done")


if __name__ == "__main__":
    train(int(sys.argv[1]), Path(sys.argv[2]))
