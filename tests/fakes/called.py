"""A store as one party has it: each of its requests passes by the test, which may note it, hold it, or let it fail.

What the test itself asks of the store below passes by nobody. So a test that does something at a request is not called
for it again, and what was asked of the whole is told apart from what this party asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from spotguard.providers.stores.base import BlobStore, ObjectInfo, Sent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    #: The name of the method.
    verb: str
    #: Of a listing its prefix.
    key: str
    timeout: float | None


#: What is done at a request, on the thread that asks. What it raises is what comes of the request.
Look = Callable[[Request], object]


def _nothing(request: Request) -> None:
    pass


class CalledStore:
    """A `BlobStore` over another one. A listing is made to its end at once, and each key of a batch is a `delete` of its own.

    Args:
        before: what is done before the store below is asked.
        after: what is done when it has answered, or has failed.
    """

    def __init__(self, store: BlobStore, before: Look = _nothing, after: Look = _nothing) -> None:
        self.url = store.url
        self.parallel = store.parallel
        #: In the order in which they began.
        self.requests: list[Request] = []
        self._store = store
        self._before = before
        self._after = after

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        """All that is asked comes by here."""
        self.requests.append(request)
        self._before(request)
        try:
            return effect()
        finally:
            self._after(request)

    # --- the six verbs ---

    def warm(self, *, timeout: float | None = None) -> None:
        self._store.warm(timeout=timeout)  # asks for nothing that is kept

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        effect = partial(self._store.put, key, data, timeout=timeout, crc32=crc32, sent=sent)
        self.through(Request("put", key, timeout), effect)

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        effect = partial(self._store.put_if_absent, key, data, timeout=timeout)
        return self.through(Request("put_if_absent", key, timeout), effect)

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        return self.through(Request("get", key, timeout), partial(self._store.get, key, timeout=timeout))

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        effect = partial(self._store.read_into, key, start, buffer, timeout=timeout)
        self.through(Request("read_into", key, timeout), effect)

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        def effect() -> Iterator[ObjectInfo]:
            return iter([*self._store.list(prefix, timeout=timeout)])

        return self.through(Request("list", prefix, timeout), effect)

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        for key in keys:  # a batch may break off anywhere
            effect = partial(self._store.delete, [key], timeout=timeout)
            self.through(Request("delete", key, timeout), effect)
