"""How fast a folder takes bytes: by whole objects, for a byte is in it when its object is, flushed to the disk.

What write(2) takes is memory's pace, and then fsync(2) brings nothing for as long as the disk needs: of such jumps a
stretch of time tells what it happened to meet. So each connection has its own rate, its bytes by the seconds of its puts,
and they are summed. Objects begin small and double while one takes no time: so a slow disk comes to the end of some, and
of a fast one it is not the price of a flush that is measured.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spotguard.hooks.checkpoints.width import Width
from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.store import BlobStore

from .asides import Aside
from .litter import Litter
from .rate import Measured, Pace

#: Bytes of the first object, and the seconds below which the next is twice as large, up to a save's.
_FIRST, _QUICK = 2**20, 0.25
#: Seconds for all of it; what is under way then does not count.
_LONGEST = 11.0
#: Seconds that one put may take, and those after the end in which one may come to its own.
_PATIENCE, _GRACE = 60.0, 3.0


@dataclass(slots=True)
class _Lane:
    """One connection: what it has put of the largest size so far, and in how many seconds."""

    size: int
    nbytes: int = 0
    seconds: float = 0.0
    settled: bool = False

    def put(self, size: int, seconds: float, most: int) -> None:
        if size > self.size:
            self.size, self.nbytes, self.seconds = size, 0, 0.0
        self.nbytes += size
        self.seconds += seconds
        self.settled = seconds >= _QUICK or size >= most

    @property
    def rate(self) -> float:
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0


class DiskMeasurement:
    """One run of it; as `rate.Measurement`.

    Args:
        key: a new one at each call, already noted as litter.
        most: bytes that may be put, all together.
    """

    def __init__(
        self, store: BlobStore, key: Callable[[], str], litter: Litter, clock: Clock, pace: Pace, most: int
    ) -> None:
        self._store, self._key, self._litter, self._clock = store, key, litter, clock
        width = Width(store.parallel)
        self._pace, self._most = pace, most
        self._data = memoryview(os.urandom(min(width.object_bytes, max(1, most // width.count))))
        first = min(_FIRST, len(self._data))
        self._lanes = [_Lane(first) for _ in range(width.count)]
        self._lock = threading.Lock()
        self._began = clock.monotonic()
        self._last = self._began
        self._total = 0
        self._enough = threading.Event()
        self._error: Exception | None = None

    def run(self) -> Measured:
        self._began = self._last = self._clock.monotonic()
        asides = [
            Aside[object](lambda lane=lane: self._put_on(lane), f"rate-{number}")  # type: ignore[misc]
            for number, lane in enumerate(self._lanes)
        ]
        for aside in asides:
            self._litter.putting(aside)
        until = self._began + _LONGEST
        self._clock.wait(self._enough, until - self._clock.monotonic())
        self._enough.set()
        for aside in asides:
            aside.ended(self._clock, until + _GRACE)
        with self._lock:
            rate = sum(lane.rate for lane in self._lanes)
            seconds, why = self._last - self._began, str(self._error or f"nothing moved in {_LONGEST:g} s")
            if rate > 0:
                return Measured(rate, self._total, seconds, len(self._lanes))
            return Measured(None, 0, 0.0, len(self._lanes), why)

    # --- each of its threads ---

    def _put_on(self, lane: _Lane) -> None:
        size = lane.size
        while not self._enough.is_set() and not self._litter.over.is_set():
            began = self._clock.monotonic()
            try:
                self._store.put(self._key(), self._data[:size], timeout=_PATIENCE)
            except StoreError as error:
                with self._lock:
                    self._error = error
                self._enough.set()
                return
            now = self._clock.monotonic()
            with self._lock:
                lane.put(size, now - began, len(self._data))
                self._total, self._last = self._total + size, now
                if self._seen_enough(now):
                    self._enough.set()
            if now - began < _QUICK:
                size = min(2 * size, len(self._data))

    def _seen_enough(self, now: float) -> bool:
        if self._total >= self._most:
            return True
        return now - self._began >= self._pace.seconds and all(lane.settled for lane in self._lanes)
