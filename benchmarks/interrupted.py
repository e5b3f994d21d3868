"""A job of DDP that is interrupted again and again: `interrupted.py FOLDER STEPS SECONDS`.

`FOLDER/failures.json` has the failures that arise in it (`spotguard simulate failure` has the same ones, one a run). The first rank
writes when it began, and each step that it has completed, to `FOLDER/steps.log`. A batch comes every so many seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import spotguard
from spotguard.hooks.recorder.failure_plan import FailurePlan
from spotguard.hooks.recorder.simulated_failure import SimulatedFailure

WIDTH = 512
#: By which the log knows one start from another.
BORN = time.time()

folder, total, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


class Samples(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(pause)
            yield torch.randn(8, WIDTH)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
guard = spotguard.register(model=model, optimizer=optimizer)
done = [guard.restore()]
for failure in json.loads((folder / "failures.json").read_text()):
    plan = FailurePlan(**failure)
    if not (Path(plan.folder) / "time-0").exists():
        SimulatedFailure(plan, rank, lambda: done[0]).begin()
batches = iter(DataLoader(Samples(), batch_size=None, num_workers=1))
log = os.open(folder / "steps.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in guard.steps(total):
    done[0] = step
    if rank == 0:
        os.write(log, f"{BORN} {time.time()} {step}\n".encode())
    batch = next(batches)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
if rank == 0:
    os.write(log, f"{BORN} {time.time()} {total}\n".encode())
guard.save()
dist.destroy_process_group()
