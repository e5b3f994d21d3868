"""A blob store in memory that fails on command. It passes the same contract suite as the real ones."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.providers.errors import CorruptError, NotFoundError, UnavailableError
from spotguard.providers.stores.base import ObjectInfo, Sent, check_key, check_prefix

T = TypeVar("T")

ALL = ("put", "put_if_absent", "get", "read_into", "list", "delete")


class Killed(BaseException):
    """The process died here: nothing of ours catches it."""


@dataclass(frozen=True)
class Fault:
    """Fail one call.

    Attributes:
        at: its number, counted from 0 over the calls of `verbs`. Deletions count key by key: a batch may break off anywhere.
        verbs: the calls that count.
        after: the effect happens, and then the call fails all the same.
        error: makes what is raised.
    """

    at: int
    verbs: tuple[str, ...] = ALL
    after: bool = False
    error: Callable[[], BaseException] = lambda: UnavailableError("the fake store fails, as it was told to")


class FakeStore:
    """A `BlobStore` over a dict. Tests set `faults`, look at `objects`, and read `calls`."""

    def __init__(self, url: str = "fake:///store") -> None:
        self.url = url
        self.parallel = 4
        self.objects: dict[str, bytes] = {}
        #: Announcements of saves, by key. They come at any instant beside the objects, so no test may count them as objects.
        self.announcements: dict[str, bytes] = {}
        #: The store's own clock, and what it said at each put.
        self.time: Callable[[], float] = time.time
        self.modified: dict[str, float] = {}
        self.faults: list[Fault] = []
        #: (verb, key), in order.
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.RLock()

    def corrupt(self, key: str, at: int, bits: int = 1) -> None:
        """Flip bits of one byte at rest."""
        data = bytearray(self.objects[key])
        data[at] ^= bits
        self.objects[key] = bytes(data)

    def copy(self) -> FakeStore:
        """Make a store that holds the same, without the faults of this one."""
        copy = FakeStore(self.url)
        with self._lock:
            copy.objects, copy.modified = dict(self.objects), dict(self.modified)
            copy.announcements = dict(self.announcements)
        return copy

    # --- the six verbs ---

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
        def effect() -> None:
            if crc32 is not None and zlib.crc32(data) != crc32:
                raise CorruptError(f"{key}: the bytes are not those that were sent")
            self._where(key)[key], self.modified[key] = bytes(data), self.time()

        if sent is not None:
            sent(data.nbytes)
        self._call("put", check_key(key), timeout, effect)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        def effect() -> bool:
            fresh = key not in self.objects
            if fresh:
                self.objects[key], self.modified[key] = bytes(data), self.time()
            return fresh

        return self._call("put_if_absent", check_key(key), timeout, effect)

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self._call("get", check_key(key), timeout, lambda: self._object(key))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        def effect() -> None:
            view = buffer.cast("B")
            data = self._object(key)[start : start + len(view)]
            if len(data) < len(view):
                raise CorruptError(f"{key}: {len(data)} bytes from {start} on, {len(view)} were expected")
            view[:] = data

        self._call("read_into", check_key(key), timeout, effect)

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        def effect() -> list[ObjectInfo]:
            there = {**self.objects, **self.announcements}
            keys = sorted(key for key in there if key.startswith(prefix))
            return [ObjectInfo(key, len(there[key]), self.modified.get(key, 0.0)) for key in keys]

        return iter(self._call("list", check_prefix(prefix), timeout, effect))

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        for key in keys:
            self._delete(check_key(key), timeout)

    # --- inside ---

    def _delete(self, key: str, timeout: float | None) -> None:
        self._call("delete", key, timeout, lambda: self._where(key).pop(key, None))

    def _where(self, key: str) -> dict[str, bytes]:
        return self.announcements if key.endswith(SAVING) else self.objects

    def _object(self, key: str) -> bytes:
        if (there := self._where(key).get(key)) is None:
            raise NotFoundError(f"{key} is not in {self.url}")
        return there

    def _call(self, verb: str, key: str, timeout: float | None, effect: Callable[[], T]) -> T:
        if timeout is not None and timeout <= 0:
            raise UnavailableError(f"{verb} {key}: out of time")
        with self._lock:
            if key.endswith(SAVING):  # its number among the calls would be another each time
                return effect()
            fault = next((fault for fault in self.faults if self._due(fault, verb)), None)
            self.calls.append((verb, key))
            if fault is not None and not fault.after:
                raise fault.error()
            result = effect()
            if fault is not None:
                raise fault.error()
            return result

    def _due(self, fault: Fault, verb: str) -> bool:
        return verb in fault.verbs and fault.at == sum(done in fault.verbs for done, _ in self.calls)
