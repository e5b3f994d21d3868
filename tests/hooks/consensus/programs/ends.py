"""Jobs of two ranks that end, one after the other, each with its mailbox waiting in the job's store.

`ends.py forked COUNT SEED`: each job is two forks of this process, which has imported torch once; they end as any process
does. `ends.py spawned`: one job by `mp.spawn`. A line for each rank that has ended in order; what the ends are, and which
rank is first, comes from the seed.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from spotguard.hooks.consensus import process_group
from spotguard.providers.clock import SystemClock


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank(index: int, port: int, end: str, busy: int) -> None:
    """One rank's whole life."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=index,
        world_size=2,
        timeout=timedelta(seconds=30),
    )
    channel = process_group.join("here", SystemClock())
    assert channel is not None
    channel.listen(lambda epoch, call, standing: None)
    atexit.register(channel.close)
    dist.all_reduce(torch.ones(1))
    for _ in range(busy):
        torch.ones(1000).sum()
    if end == "destroys":
        dist.destroy_process_group()
    print(f"rank {index} ends: {end}, lost: {channel.lost}", flush=True)
    if end == "exits":
        sys.exit(0)


def forked(count: int, seed: int) -> None:
    gc.freeze()  # what was imported is not looked through again by each that ends
    chance = random.Random(seed)
    for _ in range(count):
        port = free_port()
        lives = [
            (chance.choice(["returns", "exits", "destroys"]), chance.choice([0, 0, 3000])) for _ in range(2)
        ]
        pids = []
        for index, (end, busy) in enumerate(lives):
            pid = os.fork()
            if pid == 0:
                rank(index, port, end, busy)
                return  # to the end of the interpreter, as any script
            pids.append(pid)
        for index, pid in enumerate(pids):
            _, status = os.waitpid(pid, 0)
            print(f"rank {index} of {lives} ended with {os.waitstatus_to_exitcode(status)}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "forked":
        forked(int(sys.argv[2]), int(sys.argv[3]))
    else:
        # Without `destroy_process_group` plain torch, with no mailbox of ours, aborts such a job by itself: one of 24, seen.
        mp.spawn(rank, args=(free_port(), "destroys", 0), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
        print("spawned: ended with 0", flush=True)


if __name__ == "__main__":
    main()
