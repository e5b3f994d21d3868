"""How fast a folder takes bytes: by whole objects, for a byte is in it when its object is, flushed to the disk.

What write(2) takes is memory's pace, and then fsync(2) brings nothing for as long as the disk needs: of such jumps a
stretch of time tells what it happened to meet. So each connection has its own rate, its bytes by the seconds of its puts,
and they are summed. Objects begin small and double while one takes no time: so a slow disk comes to the end of some, and
of a fast one it is not the price of a flush that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore

from .cleanup import Leftovers
from .measuring import PATIENCE, Measured, MeasureLimits, Measuring

#: Bytes of the first object, and the seconds below which the next is twice as large, up to a save's.
_FIRST, _QUICK = 2**20, 0.25
#: Seconds for all of it; what is under way then does not count.
_LONGEST = 11.0


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


class DiskMeasurement(Measuring):
    """Of a folder: a byte counts when its object is flushed, also one that comes to its end a little later.

    Args:
        most: bytes that may be put, all together.
    """

    def __init__(
        self,
        store: BlobStore,
        key: Callable[[], str],
        litter: Leftovers,
        clock: Clock,
        pace: MeasureLimits,
        most: int,
    ) -> None:
        super().__init__(store, key, litter, clock, pace, most, _LONGEST)
        first = min(_FIRST, len(self._data))
        self._of_each = [_Lane(first) for _ in range(self.connections)]
        self._began = self._last = clock.monotonic()

    def _lanes(self) -> Sequence[Callable[[], None]]:
        return [partial(self._put_on, lane) for lane in self._of_each]

    def _result(self, ended: float) -> Measured:
        rate = sum(lane.rate for lane in self._of_each)
        if rate <= 0:
            return self._nothing()
        return Measured(rate, self._total, self._last - self._began, self.connections)

    # --- each of its threads ---

    def _put_on(self, lane: _Lane) -> None:
        size = lane.size
        while not self._stopped():
            began = self._clock.monotonic()
            try:
                self._store.put(self._key(), self._data[:size], timeout=PATIENCE)
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
        return now - self._began >= self._pace.seconds and all(lane.settled for lane in self._of_each)
