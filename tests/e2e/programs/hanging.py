"""One of two ranks below torchrun hangs at one place of a step: `hanging.py WAY PLACE SAVED AT STEPS`.

WAY: ddp, or fsdp (FSDP2). PLACE: "clipping"; "changing", in the optimizer's step; "changed", behind it and in front of
`guard.step()`; or "stopped", by SIGSTOP in front of forward. The script saves at step SAVED. Rank 1 hangs behind step AT, until it
is started again. Each rank tells where it begins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spotguard

way, place = sys.argv[1:3]
saved, at, steps = map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
if way == "ddp":
    model = DistributedDataParallel(model)
else:
    fully_shard(model)
begun = now = 0


def reaches(where: str) -> None:
    if (where, rank, now, begun) != (place, 1, at, 0):
        return
    if place == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()


class Hanging(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        reaches("changing")


optimizer = Hanging(model.parameters())
guard = spotguard.register(model=model, optimizer=optimizer)
begun = guard.restore()
os.write(1, f"rank {rank} (pid {os.getpid()}) begins at step {begun}\n".encode())
for now in guard.steps(steps):
    if now == saved:
        guard.save()
    reaches("stopped")
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    reaches("clipping")
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    reaches("changed")
guard.save()
dist.destroy_process_group()
