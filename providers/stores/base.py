"""The protocol of every blob store: six operations on keys and bytes, and `warm`, which prepares for them.

Keys are relative `/`-separated names; a store knows its own root. By contract of the caller, objects are immutable: a key
is never put twice with different bytes, so a put can be retried safely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..errors import UsageError

#: A segment of a key: characters that every store and file system takes unchanged. No segment begins with ".". So "." and
#: ".." are excluded, and a store's own temporary files may begin with ".".
_SEGMENT = re.compile(r"[A-Za-z0-9_@=+,-][A-Za-z0-9._@=+,-]{0,199}", re.ASCII)

#: Bytes of a key. S3's limit of 1,024 bytes includes the prefix in the store's URL.
_MAX_KEY = 700


#: Called on the uploading thread with the number of bytes of each piece that has left for the store. An exception from it
#: ends the put immediately, and reaches the caller of `put` unchanged.
Sent = Callable[[int], None]


class StoreMovement:
    """How often a store has answered this process, or sent it some bytes: a wait that moves is no stall."""

    count = 0

    @classmethod
    def add(cls) -> None:
        """Count once. Threads may lose a count to each other, and it rises all the same."""
        cls.count += 1


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    #: Bytes.
    size: int
    #: Unix seconds at which it was put, by the store's own clock; 0 if the store does not say.
    modified: float = field(compare=False)


def is_segment(name: str) -> bool:
    """Return whether `name` can stand between two slashes of a key."""
    return _SEGMENT.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return the key itself.

    Raises:
        UsageError: the key could lead out of a store, or some store would not take it.
    """
    if len(key) > _MAX_KEY or not all(is_segment(segment) for segment in key.split("/")):
        raise UsageError(
            f"key {key[:80]!r} is no name in a store; use letters, digits and ._@=+,- between slashes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix itself. Its directories must form a key; after the last slash it may be any text.

    Raises:
        UsageError: as for `check_key`.
    """
    if "/" in prefix:
        check_key(prefix.rpartition("/")[0])
    return prefix


@dataclass(frozen=True, slots=True)
class Credentials:
    """A description of a store's credentials, for people. It holds no secret."""

    #: The kind, in the words of the cloud's own chain: "an instance role", "a key".
    kind: str
    #: Seconds until the credentials end; None if they do not end, or if the end is unknown.
    left: float | None
    #: Whether the process can renew them by itself.
    renewed: bool
    #: Whether they are known to end, at an unknown time.
    temporary: bool = False


@runtime_checkable
class Identified(Protocol):
    """A store that has its credentials from a chain."""

    def credentials(self) -> Credentials | None:
        """Return the credentials in use; None for anonymous requests (an emulator).

        Callers ask after `warm`; the method sends nothing.
        """
        ...

    def renew_credentials(self, *, timeout: float | None = None) -> None:
        """Ask the chain for credentials anew, although the present ones may be valid: the store has refused them.

        If there are none, the present ones stay in use.
        """
        ...


class BlobStore(Protocol):
    """Everything that a checkpoint needs of a store. Every method may be called from several threads at once.

    Every method raises only `StoreError` leaves (`providers.errors`), and `check_key`'s `UsageError` for an invalid key.
    `timeout` is the rest of the caller's own deadline, in seconds. A store on a network fits its retries into it.
    """

    #: The URL as the user wrote it: "s3://bucket/prefix".
    url: str
    #: The largest useful number of requests at once.
    parallel: int

    def warm(self, *, timeout: float | None = None) -> None:
        """Prepare everything that the calling thread's next request needs besides its bytes.

        That is the SDK, credentials that last another quarter of an hour, and an open connection. Callers repeat it now
        and then, because a server closes idle connections.
        """
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
        """Upload the whole object; on return, the bytes are durable and visible under `key`.

        Args:
            key: the object's name, relative to the store's root.
            data: the object's bytes.
            timeout: seconds.
            crc32: zlib's CRC32 of all of `data`, if the caller has it. A store whose service checks it need not compute it.
            sent: called with each piece's size in bytes, as a report of progress. A piece sent again counts again.
        """
        ...

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        """Upload as `put` does, unless the key exists: then change nothing and return False."""
        ...

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """Return the whole object. For small ones: manifests, markers, attempts."""
        ...

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        """Fill `buffer` with the object's bytes from `start` on; raise `CorruptError` if the object has too few."""
        ...

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """Return every object whose key starts with `prefix`, in order of keys; strongly consistent."""
        ...

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete objects; a missing key is not an error."""
        ...
