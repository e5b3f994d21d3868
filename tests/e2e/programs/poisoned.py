"""A training of which one batch is poisoned: `poisoned.py STEPS DTYPE AT [FROM]`. It saves after every fifth step.

The poison is in the batch of step AT of the last rank, and stays there: the ranks share no gradient. FROM is the step to go back to.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import spotguard

total, at = int(sys.argv[1]), int(sys.argv[3])
dtype = getattr(torch, sys.argv[2])
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(7 + rank)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore(step=int(sys.argv[4])) if sys.argv[4:] else guard.restore()
for step in range(done + 1, total + 1):
    if world > 1:
        dist.barrier()  # as in any job of several ranks: none is a step ahead
    batch = torch.randn(16, 8, dtype=dtype)
    if step == at and rank == world - 1:
        batch[3, 2] = float("nan")
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    guard.watch_metric("validation_loss", loss)
    guard.step(loss=loss)
    if step % 5 == 0:
        guard.save()
finite = all(bool(p.isfinite().all()) for p in model.parameters())
# One write: both ranks have one pipe.
print(f"rank {rank} is {'finite' if finite else 'poisoned'} at step {total}\n", end="", flush=True)
if "POISONED_WAITS" in os.environ:
    while True:  # in the stable phase, until a notice comes
        sys.stdin.readline()
        guard.step(loss=loss)
guard.close()
if world > 1:
    dist.destroy_process_group()
