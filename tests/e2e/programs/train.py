"""A small training script as a user writes it, with a keyboard: lines on stdin decide when it steps.

    go N        take N steps, then ask again            free        take all that are left
    half        a step, up to right before guard.step(), then ask again
    stick       wait for ever, in Python                stick-in-c  wait for ever, in a call of the C library
    hold        the same, with the interpreter's lock held: no thread of Python runs any more
    save        guard.save()
    fail WORDS  raise an error with this text; "nan" is in the text of one whose values are wrong
    stall K     the K-th look at the checkpoints from now on, and all after it, never come back
    doom K PID… at the K-th look at the checkpoints from now on (0: now), SIGKILL these processes
    exit N      end with this code

What it does is said on stdout: `restored STEP DIGEST`, `step STEP DIGEST`, `done DIGEST`, `preempted CODE`.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import logging
import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def read_line() -> list[str]:
    """The words of the next line, byte by byte: what follows may be meant for another process. None where no more come."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode().split()


class Job:
    """Model, optimizer, scheduler, and data drawn from two generators."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        random.seed(7)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, gamma=0.99)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def work(self) -> None:
        x = torch.randn(4, 8)
        loss = (self.model(x) - random.random() * x.sum(1, keepdim=True)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()

    def digest(self) -> str:
        """Everything that decides how training goes on, as one word."""
        found = hashlib.sha256()
        moments = [v for p in self.model.parameters() for v in self.optimizer.state[p].values()]
        for tensor in [*self.model.state_dict().values(), *moments, torch.get_rng_state()]:
            found.update(tensor.numpy().tobytes())
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        found.update(repr((random.getstate(), self.scheduler.state_dict(), groups)).encode())
        return found.hexdigest()[:16]


class Keyboard:
    """What the lines on stdin ask for."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self._credit: float = 0
        self._half = False

    def before_step(self) -> None:
        while not self._credit:
            self._obey(*(read_line() or ["free"]))
        self._credit -= 1

    def before_boundary(self) -> None:
        if self._half:
            self._half = False
            tell("half")
            self.before_step()

    def _obey(self, word: str, *rest: str) -> None:
        if word in ("go", "free", "half"):
            self._credit = int(rest[0]) if word == "go" else (1 if word == "half" else math.inf)
            self._half = word == "half"
        elif word == "stick":
            tell("stuck")
            threading.Event().wait()
        elif word in ("stick-in-c", "hold"):
            tell("stuck")
            libc, mutex = STICK[word](None), ctypes.create_string_buffer(64)
            while True:  # as in a collective that never ends: no handler of Python runs, whatever the signal
                libc.pthread_mutex_lock(mutex)
        elif word == "fail":
            raise RuntimeError(" ".join(rest))
        elif word == "save":
            tell(f"saved {self._guard.save().step}")
        elif word == "doom":
            count, pids = int(rest[0]), [int(pid) for pid in rest[1:]]
            if count:
                tell("doomed")  # first: what is saved beside training may come to that instant at once
            at_look(count, lambda: kill(pids))
            if not count:
                tell("doomed")
        elif word == "stall":
            at_look(int(rest[0]), lambda: threading.Event().wait(), all_after=True)
            tell("doomed")
        elif word == "exit":
            sys.exit(int(rest[0]))
        else:
            raise ValueError(word)


#: How a call of the C library is made, by the word.
STICK = {"stick-in-c": ctypes.CDLL, "hold": ctypes.PyDLL}


def at_look(count: int, then: Callable[[], object], *, all_after: bool = False) -> None:
    """At an exact instant of a save: right before its `count`-th operation on the file system."""
    left = [count]
    lock = threading.Lock()

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or "/checkpoints/" not in str(arguments[0]):
            return
        with lock:
            left[0] -= 1
            now, later = left[0] == 0, left[0] < 0
        if now:
            tell(f"doom at {event} {arguments[event in MOVES]}")
        if now or (later and all_after):
            then()

    if count:
        sys.addaudithook(heard)
    else:
        then()


#: Python's own audit events (the library's page "Audit events table") of what a file store does.
OPERATIONS = frozenset({"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.scandir"})
#: Of these the second argument is the name that is made.
MOVES = frozenset({"os.rename", "os.link"})


def kill(pids: list[int]) -> None:
    for pid in sorted(pids, key=lambda pid: pid == os.getpid()):  # ourselves last
        os.kill(pid, signal.SIGKILL)


def train(steps: int, *, plain: bool = False) -> None:
    if not plain:
        import spotguard  # plain training never heard of it
    job = Job()
    guard: Any = None
    done = 0
    if not plain:
        guard = spotguard.register(**job.state)
        tell(f"registered {os.getpid()}")
        done = guard.restore()
    tell(f"restored {done} {job.digest()}")
    keyboard = Keyboard(guard)
    try:
        for step in range(done, steps):
            keyboard.before_step()
            job.work()
            keyboard.before_boundary()
            if guard is not None:
                guard.step()
            tell(f"step {step + 1} {job.digest()}")
    except SystemExit as end:
        tell(f"{'preempted' if type(end).__name__ == 'Preempted' else 'exit'} {end.code}")
        raise
    if "SAVES_ITS_END" in os.environ:
        guard.save()
    tell(f"done {job.digest()}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plain", action="store_true")
    wanted = parser.parse_args()
    if wanted.plain:  # torch as it is, with its compiler: what differs would show in the digests
        importlib.import_module("torch._dynamo.guards")
    train(wanted.steps, plain=wanted.plain)
