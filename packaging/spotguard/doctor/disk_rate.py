"""Measurement of a directory's write rate, by whole objects: a byte is stored once its object is flushed to the disk.

write(2) runs at the speed of memory, and then fsync(2) blocks until the disk has caught up. A count over a fixed time would
depend on which of the two phases it met. So each connection has a rate of its own, its bytes divided by the seconds of its
puts, and the rates are summed. Objects begin small and double in size while a put is quick. So a slow disk finishes some
objects, and the cost of a flush does not distort the rate of a fast disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore

from .cleanup import Leftovers
from .rate_measurement import PATIENCE, Measured, MeasureLimits, RateMeasurement

#: Bytes of the first object, and the seconds below which the next object is twice as large, up to the size in a save.
_FIRST, _QUICK = 2**20, 0.25
#: Seconds for the whole measurement. A put in progress at its end does not count.
_LONGEST = 11.0


@dataclass(slots=True)
class _Lane:
    """One connection: the bytes that it has put in objects of its largest size so far, and the seconds of those puts."""

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


class DiskMeasurement(RateMeasurement):
    """The measurement of a directory: a byte counts when its object is flushed, even if the put ends a little late.

    Args:
        store: the directory's store.
        key: returns a new key at each call, already noted in `litter`.
        litter: removes the objects, and stops the puts if the visit ends.
        clock: times the puts.
        pace: the length of the measurement.
        most: total bytes that may be put.
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
