"""A job of two ranks whose script ends while a background checkpoint is on its way: its manifests are put when the
interpreter has begun to end.

`last_upload.py FOLDER`. What the guards log is on standard error.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from pathlib import Path

import torch

from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.file import FileStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.two_guards import WORLD, join, on_all

#: Seconds between background checkpoints, which the clocks skip once.
EVERY = 1000.0


class Skipping(SystemClock):
    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


class Ending:
    """Holds the manifests of the upload from `holds` on, until the interpreter ends."""

    def __init__(self) -> None:
        self.holds = False
        self.on_their_way = threading.Semaphore(0)
        self.atexit = threading.Event()

    def __call__(self, request: Request) -> None:
        if self.holds and request.verb == "put" and f"-of-{WORLD:05}.json" in request.key:
            self.on_their_way.release()
            threading.main_thread().join()
            self.atexit.wait(
                1.0
            )  # of a guard that is closed before those functions: it waits for this very upload


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    torch.set_num_threads(1)
    os.environ["SPOTGUARD_EVERY"], os.environ["SPOTGUARD_KEEP"] = str(EVERY), "1"
    ending, clocks = Ending(), [Skipping() for _ in range(WORLD)]
    stores = [CalledStore(FileStore(Path(sys.argv[1])), ending) for _ in range(WORLD)]
    trainers = join(stores, clocks)
    on_all(lambda rank: trainers[rank].step())
    on_all(lambda rank: trainers[rank].guard.save())
    for clock in clocks:
        clock.skipped = EVERY
    ending.holds = True
    for _ in range(WORLD):  # of a boundary that the ranks have yet to come to
        looks = 0
        while not ending.on_their_way.acquire(timeout=0.05):
            on_all(lambda rank: trainers[rank].step())
            looks += 1
            assert looks < 400
    atexit.register(ending.atexit.set)  # the last of all, so that it is the first to be called
    logging.info("the script ends")


if __name__ == "__main__":
    main()
