"""The frame of a measurement: as many threads as a save has connections put until it is enough, and no longer than it is worth.

What is put cannot be compressed, is made once, and goes under key after key. What counts as the rate is each one's own
matter: `rate` has a network's, `disk_rate` a folder's.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotguard.hooks.save.plan.throughput import UploadWidth
from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore

from .cleanup import Leftovers
from .timeouts import Aside

#: Seconds that one put may take: a slow link brings an object in as many. What stands still is left behind before that.
PATIENCE = 60.0
#: Seconds after the end for puts to come to theirs, or to hear of it; one that stands still is found by its own timeout.
_GRACE = 3.0


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """How long it is measured, and how much is put for it at the most."""

    seconds: float = 2.0
    #: Seconds before those, in which sockets fill and windows open.
    ramp: float = 0.5
    #: Bytes.
    most: int = 4 * 2**30
    #: Bytes for a folder: what a disk takes beyond its cache is its own affair, and the rest of it is somebody's.
    most_on_disk: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen. `rate` is None where nothing moved, and `why` says more."""

    rate: float | None
    nbytes: int
    seconds: float
    connections: int
    why: str = ""


class Measuring(ABC):
    """One run of it.

    Args:
        key: a new one at each call, already noted as litter.
        most: bytes that may be put, all together.
        longest: seconds for all of it.
    """

    def __init__(
        self,
        store: BlobStore,
        key: Callable[[], str],
        litter: Leftovers,
        clock: Clock,
        pace: MeasureLimits,
        most: int,
        longest: float,
    ) -> None:
        self._store, self._key, self._litter, self._clock = store, key, litter, clock
        self._pace, self._most, self._longest = pace, most, longest
        width = UploadWidth(store.parallel)
        self.connections = width.count
        self._data = memoryview(os.urandom(min(width.object_bytes, max(1, most // width.count))))
        #: Over all that follows, and what a measurement counts.
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._error: StoreError | None = None
        self._total = 0

    def run(self) -> Measured:
        until = self._clock.monotonic() + self._longest
        asides = [Aside[object](lane, f"rate-{number}") for number, lane in enumerate(self._lanes())]
        for aside in asides:
            self._litter.putting(aside)
        self._clock.wait(self._enough, until - self._clock.monotonic())
        self._enough.set()
        ended = self._clock.monotonic()
        for aside in asides:
            aside.ended(self._clock, until + _GRACE)
        with self._lock:
            return self._result(ended)

    def _stopped(self) -> bool:
        return self._enough.is_set() or self._litter.over.is_set()

    def _nothing(self) -> Measured:
        why = str(self._error or f"nothing moved in {self._longest:g} s")
        return Measured(None, 0, 0.0, self.connections, why)

    @abstractmethod
    def _lanes(self) -> Sequence[Callable[[], None]]:
        """What each thread does: put until `_stopped`, and set `_enough` when it is."""

    @abstractmethod
    def _result(self, ended: float) -> Measured:
        """What was seen until then (monotonic seconds). The lock is held."""
