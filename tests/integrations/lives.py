"""Lives of a program: `lives.py PROGRAM OUT CASE`. It imports the program once, and forks a process for each rank of each life.

A line on stdin asks for a life: `{"words": [...], "env": {...}, "folder": "...", "ranks": 2, "said": "..."}`. Its processes run
the program's `main` as started ones would: with their words in `sys.argv`, generators seeded anew, and what they say in the
file `said`. When all have ended, a line on stdout tells their exit codes. A rank that fails ends the others, as torchrun does.
It imports for later lives the modules that a life imported by itself, because frameworks import much on their first use. No life
collects or frees these millions of objects, which took more than half of its time: they are frozen before each fork.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

#: Seconds from SIGTERM to SIGKILL for the other ranks: torchrun's.
GRACE = 30.0
#: Seconds after which a rank tells where it stands: it has probably hung, and the test will end it.
STACKS = 240


def main() -> None:
    gc.disable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an import may print
    del sys.argv[0]
    folder, name = os.path.split(sys.argv[0])
    sys.path[0] = folder
    program = importlib.import_module(name.removesuffix(".py"))
    for line in sys.stdin:
        if start_life(json.loads(line), answers):
            break
    else:
        return
    program.main()


def start_life(life: Any, answers: TextIO) -> bool:
    """Fork the ranks of a life, and tell how they ended. Whether this process is one of them."""
    pids = []
    gc.freeze()
    # Bound and not listening: torch's store, which sets SO_REUSEADDR, may listen there, and no other job gets the port.
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        for rank in range(life["ranks"]):
            if (pid := os.fork()) == 0:
                become(life, rank, free.getsockname()[1])
                return True
            pids.append(pid)
        codes = wait(pids)
    print(json.dumps(codes), file=answers, flush=True)
    import_as(life)
    return False


def import_as(life: Any) -> None:
    """Import the modules that a life had at its end, in their order."""
    known = Path(f"{life['said']}.modules")
    try:
        names = known.read_text().split()
    except FileNotFoundError:  # nobody wrote it, or the test is over and its directory gone
        return
    known.unlink(missing_ok=True)
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def write_modules(life: Any) -> None:
    with open(f"{life['said']}.modules", "w") as known:
        known.write("\n".join(sys.modules))


def become(life: Any, rank: int, port: int) -> None:
    """Make this forked process what a started one would be."""
    sys.argv[1:] = life["words"]
    os.chdir(life["folder"])
    os.environ |= life["env"]
    if life["ranks"] > 1:
        os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(life["ranks"]))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    said = os.open(life["said"], os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.dump_traceback_later(STACKS, file=2)
    if rank == 0:
        atexit.register(write_modules, life)
    gc.enable()
    random.seed()
    np.random.seed()
    torch.seed()


def wait(pids: list[int]) -> list[int]:
    """The exit codes of the ranks."""
    running = {os.pidfd_open(pid): pid for pid in pids}
    codes: dict[int, int] = {}
    deadline: float | None = None
    while running:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        ended = select.select(list(running), [], [], left)[0]
        for each in ended:
            pid = running.pop(each)
            os.close(each)
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not ended or (any(codes.values()) and deadline is None):
            for each in running:
                signal.pidfd_send_signal(each, signal.SIGTERM if ended else signal.SIGKILL)
            deadline = time.monotonic() + GRACE
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    main()
