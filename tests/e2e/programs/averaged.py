"""Ranks of DDP that go on bit for bit, or do not: `averaged.py HOW:WORLD…`, in a folder of its own. Their model draws (dropout) and
counts (batch norm).

Each says `whole HOW:WORLD RANK DIGEST` of six steps in one life, without spotguard, and `parts …` of three and three more in
another one, from a checkpoint of spotguard's. HOW is `stock`; `laid-out` (a pass is thrown away before the restore, so that the buckets are what
they will be); `unused` (`find_unused_parameters`: they stay what they were); or `torch`: as `stock`, saved and loaded by torch
alone. Each life is so many forks of this process, which has imported torch once.
"""

from __future__ import annotations

import gc
import hashlib
import os
import socket
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spotguard

_HALF = 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rank:
    def __init__(self, rank: int, how: str, world: int) -> None:
        torch.manual_seed(3)
        layers = [
            nn.Linear(5, 50),
            nn.BatchNorm1d(50),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(50, 50),
            nn.ReLU(),
        ]
        self.rank, self.how, self.world = rank, how, world
        self.model = DistributedDataParallel(
            nn.Sequential(*layers, nn.Linear(50, 3)), find_unused_parameters=how == "unused"
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def loss(self, step: int) -> Tensor:
        data = torch.randn(4 * self.world, 5, generator=torch.Generator().manual_seed(step))
        loss: Tensor = self.model(data[self.rank :: self.world]).square().mean()
        return loss

    def lay_out(self) -> None:
        self.model.eval()  # it draws nothing, and counts nothing
        self.loss(0).backward()
        self.optimizer.zero_grad()
        self.model.train()

    def live(self, steps: int, kept: str) -> None:
        """Up to so many steps."""
        guard: Any = None
        done = 0
        if self.how == "laid-out":
            self.lay_out()
        if kept == "spotguard":
            run = f"{self.how}-{self.world}"
            guard = spotguard.register(run_id=run, model=self.model, optimizer=self.optimizer)
            done = guard.restore()
        elif kept == "torch" and os.path.exists("0.pt"):
            done, model, optimizer, drawn = torch.load(f"{self.rank}.pt")
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            torch.set_rng_state(drawn)
        for step in range(done, steps):
            self.loss(step).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if guard is not None:
                guard.step()
        if steps == _HALF and guard is not None:
            guard.save()
        elif steps == _HALF:
            held = self.model.state_dict(), self.optimizer.state_dict(), torch.get_rng_state()
            dist.barrier()  # nobody looks for it any more
            torch.save((steps, *held), f"{self.rank}.pt")

    def digest(self) -> str:
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            for tensor in (parameter.detach(), *self.optimizer.state[parameter].values()):
                found.update(tensor.numpy().tobytes())
        for buffer in (*self.model.buffers(), torch.get_rng_state()):
            found.update(buffer.numpy().tobytes())
        return found.hexdigest()


def life(how: str, world: int, steps: int, kept: str, said: str = "") -> None:
    port, pids = free_port(), []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            where = f"tcp://127.0.0.1:{port}"
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
            one = Rank(rank, how, world)
            one.live(steps, kept)
            if said:
                os.write(1, f"{said} {how}:{world} {rank} {one.digest()}\n".encode())
            dist.barrier()
            sys.exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0


def main(played: list[str]) -> None:
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.ones(1, requires_grad=True)])  # what it imports is there before anybody forks
    gc.freeze()
    warnings.simplefilter("ignore")  # of parameters that are used
    for each in played:
        how, world = each.partition(":")[0], int(each.partition(":")[2])
        kept = "torch" if how == "torch" else "spotguard"
        life(how, world, 2 * _HALF, "", "whole")
        life(how, world, _HALF, kept)
        life(how, world, 2 * _HALF, kept, "parts")


if __name__ == "__main__":
    main(sys.argv[1:])
