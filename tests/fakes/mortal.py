"""A process that dies at one of its calls to its stores: that one is done, or not, and no later one is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from spotguard.providers.stores.store import BlobStore, ObjectInfo, Sent
from tests.fakes.store import Killed

T = TypeVar("T")


class Life:
    """Shared by all stores of a process. Endless until `ends` is said."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._after = False
        self._lock = threading.Lock()
        self.over = False

    def ends(self, calls: int, *, after: bool) -> None:
        """So many calls from now, before or after that call's effect."""
        with self._lock:
            self._left, self._after = calls, after

    def call(self, effect: Callable[[], T]) -> T:
        # One at a time: two threads of a process die at the same instant.
        with self._lock:
            if self.over:
                raise Killed
            if self._left is None:
                return effect()
            self.over = self._left == 0
            self._left -= 1
            if not self.over:
                return effect()
            if self._after:
                effect()
            raise Killed


class Mortal:
    """A `BlobStore` as a process of that life sees it."""

    def __init__(self, store: BlobStore, life: Life) -> None:
        self.url = store.url
        self.parallel = store.parallel
        self._store = store
        self._life = life

    def warm(self, *, timeout: float | None = None) -> None:
        """Nothing is cold here."""

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        self._life.call(lambda: self._store.put(key, data, timeout=timeout, crc32=crc32))

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        return self._life.call(lambda: self._store.put_if_absent(key, data, timeout=timeout))

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self._life.call(lambda: self._store.get(key, timeout=timeout))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        self._life.call(lambda: self._store.read_into(key, start, buffer, timeout=timeout))

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        return self._life.call(lambda: self._store.list(prefix, timeout=timeout))

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        for key in keys:  # a batch may break off anywhere
            self._life.call(lambda key=key: self._store.delete([key], timeout=timeout))  # type: ignore[misc]
