"""Whether a checkpoint could be saved at all: a small object is written, claimed again, read, found and removed.

Asked at `register`, before an attempt is claimed: a job that could never save says so in its first seconds, not in its
last, and leaves nothing behind that would fence another. `doctor` asks the same, and goes on where one is refused.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from ...providers.errors import CorruptError, DeniedError, NotFoundError, StoreError
from ...providers.stores.base import BlobStore
from .format.keys import probe_key

log = logging.getLogger("spotguard")

#: What the clouds call the right to each verb.
_RIGHTS = {
    "s3": {
        "write": "s3:PutObject",
        "read": "s3:GetObject",
        "list": "s3:ListBucket (on the bucket, without a condition)",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "write": "storage.objects.create",
        "read": "storage.objects.get",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
    "az": {
        "write": "blobs/write and blobs/add/action (SAS: cw)",
        "read": "blobs/read (SAS: r)",
        "list": "blobs/read (SAS: l)",
        "delete": "blobs/delete (SAS: d)",
    },
}

#: Seconds for the last step, which fails nobody.
_DELETE = 10.0


def right_to(url: str, verb: str) -> str:
    """The cloud's own word for a right in the store at `url`: "s3:PutObject". "" where it has none, as a folder."""
    return _RIGHTS.get(urlsplit(url).scheme, {}).get(verb, "")


class StoreProbe:
    """What a job needs of its store, step by step, on an object that no other probe ever has.

    Call in order, each once: `write`, `create`, `read`, `find`, `miss`, and `remove` whatever became of the others. `miss`,
    and `find` of nothing, may also be asked where nothing could be written. Each raises `StoreError` leaves.

    Args:
        run_id: below whose folder the object lies.
        timeout: seconds for each step; None: for as long as the store takes.
    """

    def __init__(self, store: BlobStore, run_id: str, timeout: float | None = None) -> None:
        self._store = store
        self._timeout = timeout
        self.key = probe_key(run_id, f"{os.getpid()}-{secrets.token_hex(8)}")
        self._data = memoryview(f"spotguard was here: {self.key}\n".encode())

    def write(self) -> None:
        self._store.put(self.key, self._data, timeout=self._timeout)

    def create(self) -> bool:
        """Create it once more. Whether that was refused, as it has to be: it is there."""
        return not self._store.put_if_absent(self.key, self._data, timeout=self._timeout)

    def read(self) -> None:
        if self._store.get(self.key, timeout=self._timeout) != self._data:
            raise CorruptError(f"{self._store.url} gives back other bytes than were put: look at {self.key}")

    def find(self, *, written: bool = True) -> None:
        found = [(info.key, info.size) for info in self._store.list(self.key, timeout=self._timeout)]
        if written and found != [(self.key, len(self._data))]:
            raise StoreError(
                f"{self._store.url} does not list what was put a moment ago ({self.key}): a restore would miss the newest "
                "checkpoint; use a store whose listings are consistent"
            )

    def miss(self) -> None:
        """Read what is not there: S3 says "denied" of that to who may not list, and a save needs to hear "not found"."""
        with suppress(NotFoundError):
            self._store.get(f"{self.key}-none", timeout=self._timeout)

    def remove(self, timeout: float = _DELETE) -> None:
        self._store.delete([self.key], timeout=timeout)


def probe(store: BlobStore, run_id: str) -> None:
    """Try what a job needs of its store.

    Args:
        store: asked through a patient one, it may be away for a moment.
        run_id: below whose folder the object lies.

    Raises:
        DeniedError: a right is missing; says which.
        StoreError: the store fails otherwise, or does not give back what was put.
    """
    asked = StoreProbe(store, run_id)
    with _needs(store, "write"):
        asked.write()
    try:
        with _needs(store, "write"):
            if not asked.create():
                # Safety rests on unique keys: of two starts at the same moment, both may count themselves the same.
                log.warning(
                    "%s creates an object that is there already: two starts of run %s at the same moment may "
                    "get the same attempt number; start one at a time",
                    store.url,
                    run_id,
                )
        with _needs(store, "read"):
            asked.read()
        with _needs(store, "list"):
            asked.find()
            asked.miss()
    finally:
        _remove(store, asked)


def _remove(store: BlobStore, asked: StoreProbe) -> None:
    try:
        asked.remove()
    except StoreError as error:  # training goes on: the store grows, and that is said
        log.warning(
            "nothing can be deleted there, so old checkpoints will pile up and cost: %s%s",
            error,
            _right(store, "delete") if isinstance(error, DeniedError) else "",
        )


@contextmanager
def _needs(store: BlobStore, right: str) -> Iterator[None]:
    try:
        yield
    except DeniedError as error:
        raise DeniedError(
            f"training was not started, for it could never be saved and restored: {error}{_right(store, right)}"
        ) from error


def _right(store: BlobStore, right: str) -> str:
    """What is missing, in the cloud's own word where there is one."""
    name = right_to(store.url, right)
    return f"; the right to {right} is missing{f': {name}' if name else ''}"
