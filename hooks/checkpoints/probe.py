"""Whether a checkpoint could be saved at all: a small object is written, claimed again, read, found and removed.

Asked at `register`, before an attempt is claimed: a job that could never save says so in its first seconds, not in its
last, and leaves nothing behind that would fence another.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from ...providers.errors import CorruptError, DeniedError, NotFoundError, StoreError
from ...providers.stores.store import BlobStore
from ..format.keys import probe_key

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


def probe(store: BlobStore, run_id: str) -> None:
    """Try what a job needs of its store, on an object that no other probe ever has.

    Args:
        store: asked through a patient one, it may be away for a moment.
        run_id: below whose folder the object lies.

    Raises:
        DeniedError: a right is missing; says which.
        StoreError: the store fails otherwise, or does not give back what was put.
    """
    key = probe_key(run_id, f"{os.getpid()}-{secrets.token_hex(8)}")
    data = memoryview(f"spotguard was here: {key}\n".encode())
    with _needs(store, "write"):
        store.put(key, data)
    try:
        with _needs(store, "write"):
            if store.put_if_absent(key, data):
                # Safety rests on unique keys: of two starts at the same moment, both may count themselves the same.
                log.warning(
                    "%s creates an object that is there already: two starts of run %s at the same moment may "
                    "get the same attempt number; start one at a time",
                    store.url,
                    run_id,
                )
        with _needs(store, "read"):
            if store.get(key) != data:
                raise CorruptError(f"{store.url} gives back other bytes than were put: look at {key}")
        with _needs(store, "list"):
            found = [(info.key, info.size) for info in store.list(key)]
        if found != [(key, len(data))]:
            raise StoreError(
                f"{store.url} does not list what was put a moment ago ({key}): a restore would miss the newest "
                "checkpoint; use a store whose listings are consistent"
            )
        # S3 says "denied" of what is not there to who may not list, and a save needs to hear "not found".
        with _needs(store, "list"), suppress(NotFoundError):
            store.get(f"{key}-none")
    finally:
        _remove(store, key)


def _remove(store: BlobStore, key: str) -> None:
    try:
        store.delete([key], timeout=_DELETE)
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
    name = _RIGHTS.get(urlsplit(store.url).scheme, {}).get(right)
    return f"; the right to {right} is missing{f': {name}' if name else ''}"
