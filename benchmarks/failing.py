"""Three training scripts in which `benchmarks.failures` provokes failures: `failing.py plain|accumulating|ranks [PAUSE]`.

They differ in what a failure meets: the kind of dataset, evaluation, accumulation, two ranks of DDP, and how a value that is
not finite is found. Below a launcher, the first two train by DDP as well.
PAUSE: seconds behind each step of the optimizer.

With SPIKE="RANK STEP" in the environment, the targets of that rank are wrong from its completed step on, and a directory of a
simulated failure in TMPDIR marks when.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import spotguard

STEPS = 100


class Endless(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            x = torch.randn(8)
            yield x, x.sum(0, keepdim=True)


def small() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return DistributedDataParallel(model) if dist.is_initialized() else model


def finite() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=4, num_workers=1)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(x) - y).square().mean()
    return loss


def spike(step: int) -> float:
    """Return what is added to the targets."""
    rank, at = map(int, os.environ.get("SPIKE", "-1 0").split())
    if rank != (dist.get_rank() if dist.is_initialized() else 0) or step < at:
        return 0.0
    (mark := Path(os.environ["TMPDIR"], "spotguard-simulated-spike", "time-0")).parent.mkdir(exist_ok=True)
    mark.touch()
    return 1000.0


def plain() -> None:
    """A loop over epochs that looks at its loss."""
    model, loader = small(), spotguard.ResumableLoader(finite())
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
    for step, (x, y) in enumerate(loader, guard.restore()):
        optimizer.zero_grad()
        loss = loss_of(model, x, y + spike(step))
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}")
        loss.backward()
        optimizer.step()
        guard.step(loss=loss)


def accumulating() -> None:
    """An endless dataset, two batches a step, an evaluation each ten steps; autograd looks for what is not finite."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    guard = spotguard.register(model=model, optimizer=optimizer, scheduler=scheduler)
    batches = iter(DataLoader(Endless(), batch_size=4, num_workers=1))
    with torch.autograd.set_detect_anomaly(True):
        for step in guard.steps(STEPS):
            for _ in range(2):
                x, y = next(batches)
                # A root of a negative number arises in the backward pass only.
                loss = (loss_of(model, x, y + spike(step)) + 1e-9).sqrt()
                loss.backward()
                guard.watch_loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(64, 8))
                model.train()


def ranks() -> None:
    """Two ranks of DDP, which clip their gradients and refuse those that are not finite."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer)
    batches = iter(finite())
    for step in guard.steps(STEPS):
        optimizer.zero_grad()
        x, y = next(batches)
        (loss := loss_of(model, x, y + spike(step))).backward()
        guard.watch_loss(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if pause := float("".join(sys.argv[2:]) or 0):
        register_optimizer_step_post_hook(lambda *_: time.sleep(pause))
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    {"plain": plain, "accumulating": accumulating, "ranks": ranks}[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
