"""A simulated slow link from a machine to its store: `python -m spotguard.demo.throttled_store MBIT SCRIPT ...`.

The link is a part of the cloud, which the demo simulates. The script behind the link may be any user's: only its uploads
take longer. On one computer's disk, every state would fit into every warning.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Iterable, Iterator

from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import UnavailableError
from spotguard.providers.stores import factory
from spotguard.providers.stores.base import BlobStore, ObjectInfo, Sent

#: Seconds that one piece of an object takes. Pieces let parallel uploads share the link and check their deadlines.
_PIECE = 0.05


class ThrottledStore:
    """A `BlobStore` behind a slow link.

    Args:
        store: the store behind the link.
        rate: bytes per second, for all uploads together.
        clock: the clock to wait by.
    """

    def __init__(self, store: BlobStore, rate: float, clock: Clock | None = None) -> None:
        self.url = store.url
        self.parallel = store.parallel
        self._store = store
        self._rate = rate
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._never = threading.Event()
        #: The monotonic time at which the link will have sent all its pieces.
        self._free_at = 0.0

    def warm(self, *, timeout: float | None = None) -> None:
        self._store.warm(timeout=timeout)

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        left = self._send(key, data.nbytes, timeout, sent)
        self._store.put(key, data, timeout=left, crc32=crc32)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        return self._store.put_if_absent(key, data, timeout=self._send(key, data.nbytes, timeout))

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self._store.get(key, timeout=timeout)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        self._store.read_into(key, start, buffer, timeout=timeout)

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, timeout=timeout)

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        self._store.delete(keys, timeout=timeout)

    def _send(self, key: str, nbytes: int, timeout: float | None, sent: Sent | None = None) -> float | None:
        """Wait as long as the link needs for these bytes, and return the rest of `timeout`."""
        begun = self._clock.monotonic()
        unsent = float(nbytes)
        while unsent > 0:
            piece = min(unsent, self._rate * _PIECE)
            with self._lock:
                now = self._clock.monotonic()
                # A thread that woke up late catches up, because the link did not pause meanwhile.
                self._free_at = max(self._free_at, now - _PIECE) + piece / self._rate
                wait = self._free_at - now
            if timeout is not None and now + wait > begun + timeout:
                self._clock.wait(self._never, max(0.0, begun + timeout - now))
                raise UnavailableError(f"put {key}: out of time, {unsent:.0f} of {nbytes} bytes not sent")
            self._clock.wait(self._never, max(0.0, wait))
            unsent -= piece
            if sent is not None:
                sent(int(piece))
        return None if timeout is None else max(0.0, begun + timeout - self._clock.monotonic())


def main() -> None:
    """Run a script whose stores are behind the link."""
    rate, script = float(sys.argv[1]) * 1e6 / 8, sys.argv[2]
    direct = factory.open_store

    def open_store(url: str) -> BlobStore:
        return ThrottledStore(direct(url), rate)

    factory.open_store = open_store  # before `register` imports it
    sys.argv = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
