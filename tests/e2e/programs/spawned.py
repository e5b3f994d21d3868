"""Two ranks of `sharded.py` as a script starts them by itself: `spawned.py STEPS LIMIT`, with `mp.spawn`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import sharded  # type: ignore[import-not-found]  # the script beside this one
import torch.multiprocessing as mp


def rank(index: int, port: int, steps: int, limit: Path) -> None:
    os.environ.update(RANK=f"{index}", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=f"{port}")
    sharded.together(steps, limit)


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(rank, (port, int(sys.argv[1]), Path(sys.argv[2])), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
