"""`RetryingStore`: a store that asks again after a transient failure, which means neither damage nor a missing object.

If a restore took a failed request for a missing checkpoint, it would go back behind steps that are safe in the store. Or it
would begin at step 0. So every decision by the store's content (a restore, a claim) asks through this store. It gets an answer
or an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...providers.clock import Clock
from ...providers.errors import StoreError, UnavailableError
from ...providers.stores.base import BlobStore, ObjectInfo, Sent, StoreMovement

log = logging.getLogger("spotguard")

T = TypeVar("T")

#: Seconds for which spotguard retries a transient failure: a restart of a file server, a change of routes.
PATIENCE = 60.0
#: Seconds before a retry: the first number, doubled each time up to the second.
_FIRST, _MOST = 0.1, 2.0


class RetryingStore:
    """A `BlobStore` that retries the requests of another one.

    Every request may be sent twice, because spotguard never uploads two values under one key.

    Args:
        store: the store that answers.
        clock: the time, for the waits.
        then: the consequence for the user if the patience ends, for the end of the error's message.
    """

    def __init__(self, store: BlobStore, clock: Clock, then: str) -> None:
        self.url = store.url
        self.parallel = store.parallel
        self._store = store
        self._clock = clock
        self._then = then
        self._never = threading.Event()
        self._lock = threading.Lock()
        self._said = False

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
        self._ask(timeout, lambda left: self._store.put(key, data, timeout=left, crc32=crc32, sent=sent))

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Put an object as the store does. If an answer was lost, the result is False although this call put the object."""
        return self._ask(timeout, lambda left: self._store.put_if_absent(key, data, timeout=left))

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self._ask(timeout, lambda left: self._store.get(key, timeout=left))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        self._ask(timeout, lambda left: self._store.read_into(key, start, buffer, timeout=left))

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        # Read to its end at once: a listing that breaks off begins again, so a part of it never passes for the whole.
        return iter(self._ask(timeout, lambda left: [*self._store.list(prefix, timeout=left)]))

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        listed = [*keys]  # an iterator would be empty at a retry
        self._ask(timeout, lambda left: self._store.delete(listed, timeout=left))

    def _ask(self, timeout: float | None, ask: Callable[[float | None], T]) -> T:
        """Ask with the seconds that are left, until the store answers, or the caller's timeout or `PATIENCE` ends."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        until, pause = None, _FIRST
        while True:
            try:
                answer = ask(None if end is None else max(0.0, end - self._clock.monotonic()))
                StoreMovement.add()
                return answer
            except StoreError as error:
                StoreMovement.add()  # it gives up after `PATIENCE`, which is no stall
                now = self._clock.monotonic()
                until = now + PATIENCE if until is None else until
                if not error.transient or (end is not None and now >= end):
                    raise
                if now >= until:
                    raise UnavailableError(
                        f"{error}; spotguard retried for {PATIENCE:.0f} s. {self._then}: rerun the "
                        "command when the store answers"
                    ) from error
                self._say(error)
            self._clock.wait(self._never, min(pause, until - now, PATIENCE if end is None else end - now))
            pause = min(2 * pause, _MOST)

    def _say(self, error: StoreError) -> None:
        with self._lock:
            warned, self._said = self._said, True
        if not warned:
            log.warning("the store fails, spotguard retries for up to %.0f s: %s", PATIENCE, error)
