"""A rank that is fed by workers, forked on rank 0 and spawned on rank 1: `feeding.py LIMIT`, below a launcher.

No sample beyond the step in the file LIMIT is given out: then the workers stand in the data set, and training in its
loader. Said: `rank R sockets INODE…` (to the agent, before there is a worker), `rank R worker PID THREADS` for each (THREADS:
how many of the guard's it has), `rank R step N`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import loading  # type: ignore[import-not-found]  # the script beside this one
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spotguard

#: Samples of a step, and who fetches them.
_BATCH, _WORKERS = 2, 2


class Limited(Dataset[tuple[torch.Tensor, int, int]]):
    def __init__(self, limit: Path) -> None:
        self._limit = limit

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        pause = threading.Event()
        while index >= _BATCH * int(self._limit.read_text() or 0):
            pause.wait(0.01)
        ours = [each for each in threading.enumerate() if each.name.startswith("spotguard")]
        return torch.full((8,), float(index)), os.getpid(), len(ours)


def main(limit: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def tell(words: str) -> None:
        os.write(1, f"rank {rank} {words}\n".encode())

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    guard = spotguard.register(model=model, optimizer=optimizer)
    # Its other ones are torch's, which lets all children have them.
    local = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    tell(f"sockets {' '.join(local & set(loading.sockets().split()))}")
    done = guard.restore()
    method = ("fork", "spawn")[rank]
    batches = DataLoader(
        Limited(limit), batch_size=_BATCH, num_workers=_WORKERS, multiprocessing_context=method
    )
    seen = set()
    for step, (x, pids, threads) in enumerate(batches, done):
        if (pid := int(pids[0])) not in seen:
            seen.add(pid)
            tell(f"worker {pid} {int(threads[0])}")
        model(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        guard.step()
        tell(f"step {step + 1}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
