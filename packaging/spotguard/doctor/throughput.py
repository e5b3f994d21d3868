"""Measurement of the rate at which this machine uploads to a store, for two seconds, with a save's connections and objects.

Bytes count as in a save (`hooks.commit.plan.throughput`), once the connections are full. Bytes that the kernel buffers ahead
of the network say nothing about the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotguard.hooks.checkpoint.format.crc import crc32
from spotguard.hooks.commit.plan.throughput import StoreLink
from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.http import PIECE
from spotguard.providers.text import amount

from .checks.store import FOLDER
from .cleanup import Leftovers
from .finding import Finding, fails, ok, warning
from .rate_measurement import PATIENCE, Measured, MeasureLimits, RateMeasurement

#: Pieces per connection that sockets and routers may buffer ahead of a slower link, and the most seconds to wait for them.
#: The measurement does not count these pieces: at 50 Mbit/s they would make the rate 60.
_AHEAD, _AHEAD_MOST = 2, 3.0
#: Longest count in seconds. A slow link needs it, until its connections have sent one piece each.
_LONGEST = 8.0
#: Bytes per second below which the doctor warns.
_SLOW = 10e6
_FAR = "a connection gives 50 to 95 MB/s where store and machine are in one region: are they?"
_BUSY = "a disk gives more: look at what else writes to it, and at the network that it may lie behind"
_NETWORK = "look at the network between this machine and the store, and at what else uses it"
#: Transient failures of one connection after which the measurement ends.
_TRIES = 3


class _Enough(Exception):
    """Enough is measured: abort the put."""


class Measurement(RateMeasurement):
    """The measurement of a network: every byte counts once the connections are full."""

    def __init__(
        self, store: BlobStore, key: Callable[[], str], litter: Leftovers, clock: Clock, pace: MeasureLimits
    ) -> None:
        super().__init__(store, key, litter, clock, pace, pace.most, _AHEAD_MOST + _LONGEST)
        self._crc = crc32(self._data)
        self._link = StoreLink()
        #: When the first byte left, in monotonic seconds.
        self._began: float | None = None
        #: When the first byte that counts left.
        self._counted_from: float | None = None
        #: When the last byte left.
        self._last = 0.0
        #: Bytes that count.
        self._counted = 0

    def _lanes(self) -> Sequence[Callable[[], None]]:
        return [self._put_on] * self.connections

    def _result(self, ended: float) -> Measured:
        since = self._last if self._counted_from is None else self._counted_from
        seconds, rate = self._last - since, None
        self._link.end(self._last)
        if (seen := self._link.rate(self._last)) is not None:
            rate = seen.expected
        if self._began is not None and self._total < self._most:
            # On a slow link a few pieces may arrive together at the end. The rate over the whole time corrects that.
            whole = (self._last if rate is not None else ended) - self._began
            at_most = self._total / whole if whole > 0 else rate
            if rate is None or (at_most is not None and at_most < rate):
                rate, seconds, self._counted = at_most, whole, self._total
        if rate is None:
            return self._nothing()
        return Measured(rate, self._counted, seconds, self.connections)

    # --- each of its threads ---

    def _put_on(self) -> None:
        tries = _TRIES
        while not self._stopped():
            try:
                self._put_one()
            except _Enough:
                return
            except StoreError as error:
                tries -= 1
                with self._lock:
                    self._error = error
                if tries == 0 or not error.transient:
                    self._enough.set()

    def _put_one(self) -> None:
        left = len(self._data)

        def sent(count: int) -> None:
            nonlocal left
            left -= count
            if not self._stopped():  # bytes after the end do not count
                self._count(count)
            # A put whose last byte has left is not aborted: the store would still write it, after the cleanup.
            if self._stopped() and left > 0:
                raise _Enough

        self._store.put(self._key(), self._data, timeout=PATIENCE, crc32=self._crc, sent=sent)

    def _count(self, count: int) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if self._began is None:
                self._began = now
            self._total += count
            if self._counted_from is None:
                if self._is_full(now - self._began):
                    self._counted_from = now
                    self._link.begin(now)
            else:
                self._counted += count
                self._link.sent(self._counted, now)
            self._last = now
            if self._seen_enough(now):
                self._enough.set()

    def _is_full(self, seconds: float) -> bool:
        """Report whether the connections are full, so that bytes leave at the link's own rate from here on."""
        if self._total >= self._most // 4:  # a quarter of the limit has left already: count the rest
            return True
        ahead = _AHEAD * PIECE * self.connections
        return seconds >= self._pace.ramp and (self._total >= ahead or seconds >= _AHEAD_MOST)

    def _seen_enough(self, now: float) -> bool:
        if self._total >= self._most:
            return True
        if self._counted_from is None or now - self._counted_from < self._pace.seconds:
            return False
        return self._counted >= PIECE * self.connections


def told(measured: Measured, *, folder: bool = False) -> Finding:
    """Return the finding about the rate.

    Args:
        measured: the result of the measurement.
        folder: the store is a directory, not a cloud's.
    """
    facts: dict[str, Any] = {"connections": measured.connections, "bytes": measured.nbytes}
    if measured.rate is None:
        advice = FOLDER if folder else _NETWORK
        return fails("rate", f"not measured: {measured.why}", advice, rate=None, **facts)
    found = f"{amount(measured.rate)}/s over {measured.connections} connections"
    if measured.rate < _SLOW:
        return warning("rate", found, _BUSY if folder else _FAR, rate=round(measured.rate, 1), **facts)
    return ok("rate", found, rate=round(measured.rate, 1), **facts)
