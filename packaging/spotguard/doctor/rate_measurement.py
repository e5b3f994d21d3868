"""The frame of a rate measurement: as many threads as a save has connections put objects, until enough is measured.

Each object has the same random bytes, which cannot be compressed, and a key of its own. The subclasses define the rate:
`throughput` for a network, `disk_rate` for a directory.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotguard.hooks.commit.plan.throughput import UploadWidth
from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore

from .cleanup import Leftovers
from .timeouts import Aside

#: Timeout of one put, in seconds: a slow link needs as long for one object. The measurement abandons a hung put earlier.
PATIENCE = 60.0
#: Seconds after the deadline in which puts may finish, or notice the end. A hung put ends by its own timeout.
_GRACE = 3.0


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """The length of a measurement, and the most bytes that it puts."""

    seconds: float = 2.0
    #: Seconds before the measurement, in which socket buffers fill and TCP windows open.
    ramp: float = 0.5
    #: Most bytes for a cloud's store.
    most: int = 4 * 2**30
    #: Most bytes for a directory: the doctor does not measure a disk beyond its cache, and others need the free space.
    most_on_disk: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a measurement. If nothing was put, `rate` is None and `why` has the reason."""

    rate: float | None
    nbytes: int
    seconds: float
    connections: int
    why: str = ""


class RateMeasurement(ABC):
    """One measurement.

    Args:
        store: the store to measure.
        key: returns a new key at each call, already noted in `litter`.
        litter: removes the objects, and stops the puts if the visit ends.
        clock: times the measurement.
        pace: the length of the measurement.
        most: total bytes that may be put.
        longest: seconds for the whole measurement.
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
        #: Guards the fields below, and the counters of the subclasses.
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
        """Return one function for each thread: it puts until `_stopped`, and sets `_enough` when enough is measured."""

    @abstractmethod
    def _result(self, ended: float) -> Measured:
        """Return the result up to `ended` (monotonic seconds). The caller holds the lock."""
