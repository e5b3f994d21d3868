"""Training that counts what its process does between a notice and the commit.

It says `ready` on stdout when six steps are done and what a save needs is there, while nothing was saved yet; and what
was counted, in JSON, when the notice's own save is committed.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import train  # type: ignore[import-not-found]  # the script beside this one
from torch import nn

#: Python's own audit events (the library's page "Audit events table") of what is to be there before a notice.
COUNTED = {
    "import": "imports",
    "socket.getaddrinfo": "look-ups",
    "socket.gethostbyname": "look-ups",
    "socket.connect": "connections",
    "subprocess.Popen": "programs",
    "open": "files",
}


class Counts(logging.Handler):
    """What happened since the notice was told; the hook's own log says when that is, and when the commit."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.found: dict[str, list[str]] = {name: [] for name in [*COUNTED.values(), "handshakes", "threads"]}
        #: What happened before: that it can be heard.
        self.before: set[str] = set()
        self.faults = self.savers = 0
        self.ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if "s left, saving at step" in words:
            self.savers, self.faults = len(savers()), -faults()
            self.on = True
        elif self.on and " is committed: " in words:
            self.on = False
            self.faults += faults()
            self.ended.set()

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        # The kernel's files are in memory: the hook reads there how far training is.
        if event in COUNTED and not (event == "open" and str(arguments[0]).startswith("/proc/")):
            self.count(COUNTED[event], str(arguments[1] if event == "socket.connect" else arguments[0]))

    def count(self, what: str, detail: str) -> None:
        if self.on:
            self.found[what].append(f"{threading.current_thread().name}: {detail}")
        else:
            self.before.add(what)

    def account(self, model: nn.Module) -> str:
        nbytes = sum(3 * parameter.nbytes for parameter in model.parameters())  # and its moments
        pages = nbytes // os.sysconf("SC_PAGESIZE")
        about = {"before": sorted(self.before), "faults": self.faults, "savers": self.savers, "pages": pages}
        return json.dumps({"found": self.found, **about})


def savers() -> list[int]:
    """The saving threads, as the kernel numbers them."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("spotguard")]
    return [thread.native_id for thread in ours if thread.native_id is not None]


def faults() -> int:
    """Pages that they have touched for the first time (proc(5), minflt)."""
    stats = [Path(f"/proc/self/task/{tid}/stat").read_text() for tid in savers()]
    return sum(int(stat.rpartition(")")[2].split()[7]) for stat in stats)


def hear(counts: Counts) -> None:
    """Have everything counted. For two of them Python has no audit event, or none before 3.12."""
    sys.addaudithook(counts.heard)
    shake, start = ssl.SSLSocket.do_handshake, threading.Thread.start

    def do_handshake(self: ssl.SSLSocket, block: bool = False) -> None:
        counts.count("handshakes", str(self.server_hostname))
        shake(self, block)

    def start_thread(self: threading.Thread) -> None:
        counts.count("threads", self.name)
        start(self)

    ssl.SSLSocket.do_handshake = do_handshake  # type: ignore[method-assign]
    threading.Thread.start = start_thread  # type: ignore[method-assign]


def warm(guard: Any) -> bool:
    """Whether all is there that a save needs but its bytes."""
    writer = guard._checkpointer._writer
    workers = [*writer.uploads.pool.workers, *writer.uploads.request_pool.workers]
    return (
        bool(writer.plans._held)
        and guard._saver._running is None
        and all(worker.rests() for worker in workers)
    )


def until_warm(guard: Any) -> None:
    """Nothing announces it, so it is asked again and again."""
    never, end = threading.Event(), time.monotonic() + 180
    while not warm(guard):
        assert time.monotonic() < end, "what a save needs is not there"
        never.wait(0.01)


def main() -> None:
    import spotguard

    counts = Counts()
    logging.getLogger("spotguard").addHandler(counts)
    hear(counts)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer)
    guard.restore()
    for number in range(7):
        if number == 6:
            until_warm(guard)
            train.tell("ready")
            assert counts.ended.wait(180)
            train.tell(counts.account(model))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        guard.step()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    main()
