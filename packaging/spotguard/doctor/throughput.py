"""How fast this machine puts bytes into the store: for two seconds, over the connections and with the objects of a save.

The bytes are counted as a save counts them (`hooks.save.plan.throughput`), from when the connections are full: what the
kernel takes ahead of the network is no rate. What cannot be compressed is put, once made, under key after key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotguard.hooks.checkpoint.format.crc import crc32
from spotguard.hooks.save.plan.throughput import StoreLink
from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.http import PIECE
from spotguard.providers.text import amount

from .checks.store import FOLDER
from .cleanup import Leftovers
from .finding import Finding, fails, ok, warning
from .measuring import PATIENCE, Measured, MeasureLimits, Measuring

#: Sockets and routers take up to so many pieces of each connection at once, on their way to a link that is slower: they
#: are not counted (at 50 Mbit/s they would make it 60), unless that takes so many seconds.
_AHEAD, _AHEAD_MOST = 2, 3.0
#: A link that is so slow that a connection has not brought one piece by then is looked at for longer.
_LONGEST = 8.0
#: Bytes a second of a link that is worth a question.
_SLOW = 10e6
_FAR = "a connection gives 50 to 95 MB/s where store and machine are in one region: are they?"
_BUSY = "a disk gives more: look at what else writes to it, and at the network that it may lie behind"
_NETWORK = "look at the network between this machine and the store, and at what else uses it"
#: Puts of one connection that may fail for now.
_TRIES = 3


class _Enough(Exception):
    """It was measured: nothing more is to be sent."""


class Measurement(Measuring):
    """Of a network: every byte counts from when the connections are full."""

    def __init__(
        self, store: BlobStore, key: Callable[[], str], litter: Leftovers, clock: Clock, pace: MeasureLimits
    ) -> None:
        super().__init__(store, key, litter, clock, pace, pace.most, _AHEAD_MOST + _LONGEST)
        self._crc = crc32(self._data)
        self._link = StoreLink()
        #: When the first byte left, the first that counts, and the last.
        self._began: float | None = None
        self._counted_from: float | None = None
        self._last = 0.0
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
            # Of a slow link a few pieces may have come together at the end: all of them by all of the time say so.
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
            if not self._stopped():  # what comes after the end is measured by nobody
                self._count(count)
            # What has left as a whole is stored, also where nobody waits for the answer: it would land after it was removed.
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
        """Whether the connections are full: from here on what leaves is what the link takes."""
        if self._total >= self._most // 4:  # of a store that is full so soon there is no more to count
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
    """The line of it.

    Args:
        folder: of the store that is meant; else it is a cloud's.
    """
    facts: dict[str, Any] = {"connections": measured.connections, "bytes": measured.nbytes}
    if measured.rate is None:
        advice = FOLDER if folder else _NETWORK
        return fails("rate", f"not measured: {measured.why}", advice, rate=None, **facts)
    found = f"{amount(measured.rate)}/s over {measured.connections} connections"
    if measured.rate < _SLOW:
        return warning("rate", found, _BUSY if folder else _FAR, rate=round(measured.rate, 1), **facts)
    return ok("rate", found, rate=round(measured.rate, 1), **facts)
