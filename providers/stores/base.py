"""The seam every blob store stands behind: six verbs over keys and bytes, and a way to be warm before they are needed.

Keys are relative `/`-separated names; a store knows its own root. Objects are immutable by contract of the
caller: a key is never put twice with different bytes, so a retried put needs no care.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..errors import UsageError

#: Segments of a key: what every store and file system takes as it is. None begins with ".", so "." and ".." are none,
#: and a store's own temporaries may.
_SEGMENT = re.compile(r"[A-Za-z0-9_@=+,-][A-Za-z0-9._@=+,-]{0,199}", re.ASCII)

#: S3's limit is 1,024 bytes with the prefix of the store's URL counted.
_MAX_KEY = 700


#: Called with the bytes of each piece of a body that left for the store, on the thread that puts. What it raises ends the
#: put at once, and comes out of it unchanged.
Sent = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int  # bytes


def is_segment(name: str) -> bool:
    """Whether `name` can stand between two slashes of a key."""
    return _SEGMENT.fullmatch(name) is not None


def check_key(key: str) -> str:
    """The key itself.

    Raises:
        UsageError: it could lead out of a store, or some store would not take it.
    """
    if len(key) > _MAX_KEY or not all(is_segment(segment) for segment in key.split("/")):
        raise UsageError(
            f"key {key[:80]!r} is no name in a store; use letters, digits and ._@=+,- between slashes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself; its folders must be a key, and what follows the last slash may be the beginning of anything.

    Raises:
        UsageError: as `check_key`.
    """
    if "/" in prefix:
        check_key(prefix.rpartition("/")[0])
    return prefix


@dataclass(frozen=True, slots=True)
class Credentials:
    """As whom a store asks, for a person to read. Nothing secret."""

    #: "an instance role", "a key": in the words of the cloud's own chain.
    kind: str
    #: Seconds until their end; None: they have none, or nobody says when.
    left: float | None
    #: Whether new ones can be had by who holds them, without anybody's doing.
    renewed: bool
    #: They are known to end, and not when.
    temporary: bool = False


@runtime_checkable
class Identified(Protocol):
    """A store that asks as somebody, and can say as whom. Asked after `warm`; nothing is sent."""

    def credentials(self) -> Credentials | None:
        """None: it asks as nobody (an emulator)."""
        ...


class BlobStore(Protocol):
    """All a checkpoint needs of a store. Every method is safe to call from several threads at once.

    Every method raises only `StoreError` leaves (`providers.errors`), and `check_key`'s for what is no key. `timeout` is what is left of the caller's
    own deadline, in seconds; a store that talks over a network cuts its retries from it.
    """

    #: As the user wrote it: "s3://bucket/prefix".
    url: str
    #: How many requests at once make sense at most.
    parallel: int

    def warm(self, *, timeout: float | None = None) -> None:
        """Have what the calling thread's next request needs but its bytes: the SDK, credentials that last for another
        quarter of an hour, an open connection. Said again now and then, for a server closes what lies idle."""
        ...

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Store the whole object; when this returns, the bytes are durable and visible under `key`.

        Args:
            crc32: zlib's, of all of `data`, where the caller has it: a service that checks it need not be told another.
            sent: told how far it is. A piece that is sent again counts again.
        """
        ...

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """As `put`, unless the key exists: then nothing changes and the answer is False."""
        ...

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """The whole object. For small ones: manifests, markers, attempts."""
        ...

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` with the bytes of the object from `start` on. Too few of them: `CorruptError`."""
        ...

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in order of keys; strongly consistent."""
        ...

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Remove objects; a key that is not there is no error."""
        ...
