"""A sharded training script as a user writes it, for any number of ranks: `sharded.py STEPS [LIMIT [WIDTH]]`, and alone where
no launcher started it, without spotguard. With a WIDTH it is a wide one that all ranks hold alike: 12 bytes times its square.

The data of a step is drawn from its number and cut among the ranks, so the loss of each step is, but for the order of
sums, the same in every world. Said on stdout, by rank 0 alone but for the first: `rank R of W on HOST`,
`restored STEP DIGEST`, `step STEP LOSS DIGEST` (DIGEST: of the whole parameters and moments, none cut), `done`. Where
a file LIMIT is named, no step is begun beyond the number in it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import spotguard

#: Samples of a step: up to four ranks have equally many, and so have six or eight.
_BATCH = 24


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """All ranks have to call it."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
            found.update(whole(tensor).numpy().tobytes())
    return found.hexdigest()[:16]


def loss_of(model: nn.Module, step: int, rank: int, world: int) -> Tensor:
    """Of this rank's samples; its mean over the ranks is the mean over all samples."""
    data = torch.randn(_BATCH, 8, generator=torch.Generator().manual_seed(step))
    mine = data[rank::world]
    loss: Tensor = (model(mine) - mine.sum(1, keepdim=True).sin()).pow(2).mean()
    return loss


def prepare(width: int = 0) -> nn.Sequential:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    if width:
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
    return nn.Sequential(nn.Linear(8, 50), nn.GELU(), nn.Linear(50, 1))


def shard(model: nn.Sequential) -> nn.Module:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int, world: int) -> Tensor:
    loss = loss_of(model, step, rank, world)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach().clone()


def alone(steps: int, width: int = 0) -> None:
    model = prepare(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        loss = take_step(model, optimizer, step, 0, 1)
        tell(f"step {step + 1} {loss.item():.6f} {digest(model, optimizer)}")


def together(steps: int, limit: Path | None, width: int = 0) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    uncut = prepare(width)
    model = DistributedDataParallel(uncut) if width else shard(uncut)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = spotguard.register(model=model, optimizer=optimizer)
    tell(f"rank {rank} of {world} on {socket.gethostname()}")
    done = guard.restore()
    said = digest(model, optimizer)
    if rank == 0:
        tell(f"restored {done} {said}")
    pause = threading.Event()
    for step in range(done, steps):
        while limit is not None and step >= int(limit.read_text() or 0):
            pause.wait(0.05)
        loss = take_step(model, optimizer, step, rank, world)
        guard.step()
        dist.all_reduce(loss)
        said = digest(model, optimizer)
        if rank == 0:
            tell(f"step {step + 1} {loss.item() / world:.6f} {said}")
    if rank == 0:
        tell("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    steps, width = int(sys.argv[1]), int(sys.argv[3]) if sys.argv[3:] else 0
    if "RANK" in os.environ:
        together(steps, Path(sys.argv[2]) if sys.argv[2:] else None, width)
    else:
        alone(steps, width)
