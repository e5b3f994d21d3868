"""A replica of a DDP job below torchrun, with a dict of its own. `killed.py STEPS SAVED DIES RANK`: after step SAVED it saves by
hand; after step DIES this rank (1) is killed by SIGKILL, and the other waits for whoever ends it. Without DIES it trains to its end."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spotguard

total, saved, dies, victim = [*map(int, sys.argv[1:]), *(0, 0, 1)[len(sys.argv) - 2 :]]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(100 + rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
mine = {"whose": rank, "drawn": 0}
guard = spotguard.register(model=model, optimizer=optimizer, mine=mine)
done = guard.restore()
line = f"rank {rank} at step {done}: whose {mine['whose']}, drawn {mine['drawn']}\n"
os.write(1, line.encode())  # at once: `print` may write the line's end apart, behind another rank's line
for step in range(done, total):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    mine["drawn"] += 1
    guard.step()
    if step + 1 == saved:
        guard.save()
    if step + 1 == dies:
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(0.05)
dist.destroy_process_group()
