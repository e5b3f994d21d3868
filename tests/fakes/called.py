"""A store whose every call goes through somebody, who lets it happen, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from spotguard.providers.stores.store import BlobStore, ObjectInfo, Sent

T = TypeVar("T")


class Through(Protocol):
    def __call__(self, what: str, effect: Callable[[], T], /) -> T: ...


class CalledStore:
    """A `BlobStore`. Its calls are "put KEY", "get KEY", "read KEY", "list", "delete": one for each key."""

    def __init__(self, store: BlobStore, call: Through) -> None:
        self.url = store.url
        self.parallel = store.parallel
        self._store = store
        self._call = call

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
        self._call(f"put {key}", lambda: self._store.put(key, data, timeout=timeout, crc32=crc32, sent=sent))

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        return self._call(f"put {key}", lambda: self._store.put_if_absent(key, data, timeout=timeout))

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self._call(f"get {key}", lambda: self._store.get(key, timeout=timeout))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        self._call(f"read {key}", lambda: self._store.read_into(key, start, buffer, timeout=timeout))

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        return self._call("list", lambda: self._store.list(prefix, timeout=timeout))

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        for key in keys:  # a batch may break off anywhere
            self._call("delete", lambda key=key: self._store.delete([key], timeout=timeout))  # type: ignore[misc]
