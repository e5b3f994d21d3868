"""A rank of a job that fails on purpose: `failing.py FATE…`, below torchrun. Each FATE is `HOW:RANK`, of one life after another.

HOW: `exits`, `raises`, `killed` (SIGKILL), `noticed` (saves and leaves as if its machine went). A life takes two steps and saves
before it comes to that; the one after the last fate takes two and stands. Said: `rank R life L is INCARNATION, heard CALLS
calls, knows KEYS`, `rank R life L restored STEP`, `rank R life L stands`. KEYS are those of ours in the job's store, as it was
given to us.
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
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import spotguard
from spotguard.testing import preempt


def store() -> Any:
    """Of the job, without the prefixes of this life's process group."""
    found: Any = dist.distributed_c10d._get_default_store()
    while isinstance(found, PrefixStore):
        found = found.underlying_store
    return found


def forget_addresses(rank: int, world: int, life: int) -> None:
    """In a store that outlives a life torch 2.13 finds where gloo's processes were in it, and connects to those that are dead:
    seen without spotguard too. So each rank takes its own away first."""
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    for key in store.list_keys():
        if key.startswith("default_pg/") and "spotguard/" not in key and key.endswith(f"/{rank}"):
            store.delete_key(key)
    if store.add(f"forgotten/{life}", 1) == world:
        store.set(f"forgotten/{life}/all", "1")
    store.wait([f"forgotten/{life}/all"])


def fail(how: str, guard: Any) -> None:
    if how == "exits":
        sys.exit(3)
    if how == "raises":
        raise ValueError("on purpose")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    preempt(guard, 20.0)
    guard.step()


def main(fates: list[str]) -> None:
    torch.set_num_threads(1)
    rank, world, life = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    )
    if life and os.environ["TORCHELASTIC_USE_AGENT_STORE"] == str(True):
        forget_addresses(rank, world, life)
    dist.init_process_group("gloo")

    def tell(words: str) -> None:
        os.write(1, f"rank {rank} life {life} {words}\n".encode())

    ours = sum("spotguard/" in key for key in store().list_keys())
    dist.barrier()  # before anybody writes new ones
    torch.manual_seed(7)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer)
    channel = guard._channel
    assert channel is not None
    tell(f"is {channel.incarnation}, heard {channel.standing.epoch} calls, knows {ours}")
    done = guard.restore()
    tell(f"restored {done}")

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        guard.step()

    step()
    step()
    if life < len(fates):
        guard.save()
        how, whose = fates[life].split(":")
        dist.barrier()
        if rank == int(whose):
            fail(how, guard)
        while True:  # until the collective fails, whose peer is gone
            step()
    tell("stands")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
