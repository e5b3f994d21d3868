"""How many of our files one call passes: an emergency save of one process, an agreed save of four ranks, a restore.

Counted by `sys.setprofile` on every thread, from the notice (without the socket) to the commit, and from `restore()` to its end. It is
a measure of how far a reader has to go, and of nothing that a user waits for. The ranks are threads of one process, over torch's
`HashStore`.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard import hooks
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.control.ending import sigterm
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.guard import Guard
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.factory import open_store

from .rows import Row
from .scale import Scale

#: Below it lie the files that count.
_HOOKS = str(Path(hooks.__file__).parent)
_RANKS = 4


def measure(scale: Scale) -> Iterator[Row]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, _Counter() as counter:
        store = Path(folder, "one").as_uri()
        with _guarded(store) as job:
            job.begin()
            saved = counter.of(job.leave)
        with _guarded(store) as job:
            restored = counter.of(job.guard.restore)
        agreed = _files_of_ranks(counter, Path(folder, "ranks").as_uri())
    yield Row("files that an emergency save of one process passes", "files", (float(saved),))
    yield Row(f"files that an agreed save of {_RANKS} ranks passes", "files", (float(agreed),))
    yield Row("files that a restore passes", "files", (float(restored),))


class _Job:
    """A small training under guard."""

    def __init__(self, url: str, channel: Channel | None) -> None:
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        self._model, self._optimizer = model, torch.optim.AdamW(model.parameters())
        self._first = channel is None or channel.rank == 0
        values: dict[str, Any] = {"model": model, "optimizer": self._optimizer}
        self.guard = Guard(open_store(url), "run", values, SystemClock(), channel)

    def begin(self) -> None:
        """Train three steps."""
        self.guard.restore()
        for _ in range(3):
            self._step()

    def leave(self) -> None:
        """Have a notice, or hear of the first rank's, and train until it is answered."""
        if self._first:
            self.guard.preempt(30.0)
        with suppress(Preempted):
            while True:
                self._step()

    def _step(self) -> None:
        self._model(torch.rand(8, 16)).square().sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.guard.step()


@contextmanager
def _guarded(url: str, channel: Channel | None = None) -> Iterator[_Job]:
    job = _Job(url, channel)
    try:
        yield job
    finally:
        job.guard.close()
        sigterm.let_go()


def _files_of_ranks(counter: _Counter, url: str) -> int:
    store, clock = cast(JobStore, HashStore()), SystemClock()
    trained, begun = threading.Barrier(_RANKS + 1), threading.Event()

    def rank(number: int) -> None:
        channel = Channel.join(
            store, number, _RANKS, f"machine {number}", clock, meet=lambda _: b"incarnation"
        )
        with _guarded(url, channel) as job:
            job.begin()
            trained.wait()
            begun.wait()
            job.leave()

    with ThreadPoolExecutor(_RANKS) as pool:
        ranks = [pool.submit(rank, number) for number in range(_RANKS)]
        trained.wait()

        def save() -> None:
            begun.set()
            for each in ranks:
                each.result()

        return counter.of(save)


class _Counter:
    """Notes the files below `hooks` whose functions are called, on this thread and on all that begin later."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._on = False

    def __enter__(self) -> _Counter:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def of(self, call: Callable[[], object]) -> int:
        """How many files the call passes."""
        self._files, self._on = set(), True
        call()
        self._on = False
        return len(self._files)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if self._on and event == "call" and name.startswith(_HOOKS):
            self._files.add(name)
