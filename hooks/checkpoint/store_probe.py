"""Probe of a store: whether a job could save there at all.

The probe writes a small object, claims it again, reads, lists and deletes it. `register` runs the probe before it
claims an attempt. So a job that could never save reports that in its first seconds, not in its last. Such a job
leaves nothing behind that would fence another. `doctor` runs the same steps, and continues if one is refused.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...providers.errors import CorruptError, DeniedError, NotFoundError, NotSupportedError, StoreError
from ...providers.stores.base import BlobStore
from ...providers.stores.url import scheme_of
from .format.keys import probe_key

log = logging.getLogger("spotguard")

#: Name of the right for each verb, by cloud.
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

#: Seconds for the last step, whose failure stops no job.
_DELETE = 10.0


def right_to(url: str, verb: str) -> str:
    """Return the cloud's own name for a right in the store at `url`, such as "s3:PutObject".

    The name is "" for a store without such rights, as a directory.
    """
    return _RIGHTS.get(scheme_of(url), {}).get(verb, "")


class StoreProbe:
    """Operations that a job needs from its store, one method each, on an object that no other probe uses.

    Call `write`, `create`, `read`, `find` and `miss` in this order, each once, and `remove` in any case. If nothing
    could be written, `miss` and `find(written=False)` may still be called. Each raises subclasses of `StoreError`.

    Args:
        store: the store to probe.
        run_id: the run whose directory holds the object.
        timeout: seconds for each step; None for no limit.
    """

    def __init__(self, store: BlobStore, run_id: str, timeout: float | None = None) -> None:
        self._store = store
        self._timeout = timeout
        self.key = probe_key(run_id, f"{os.getpid()}-{secrets.token_hex(8)}")
        self._data = memoryview(f"spotguard was here: {self.key}\n".encode())

    def write(self) -> None:
        self._store.put(self.key, self._data, timeout=self._timeout)

    def create(self) -> str:
        """Create the object once more; return "" if the store refuses an object that exists, else what it does instead."""
        try:
            if not self._store.put_if_absent(self.key, self._data, timeout=self._timeout):
                return ""
        except NotSupportedError as error:
            return str(error)
        return f"{self._store.url} does not refuse to create an object that exists already"

    def read(self) -> None:
        if self._store.get(self.key, timeout=self._timeout) != self._data:
            raise CorruptError(
                f"{self._store.url} returns other bytes than spotguard uploaded: check object {self.key} [SG310]"
            )

    def find(self, *, written: bool = True) -> None:
        listed = [(info.key, info.size) for info in self._store.list(self.key, timeout=self._timeout)]
        if written and listed != [(self.key, len(self._data))]:
            raise StoreError(
                f"{self._store.url} does not list an object that spotguard uploaded a moment ago "
                f"({self.key}): a restore would miss the newest checkpoint; use a store whose listings "
                "are consistent [SG310]"
            )

    def time(self) -> float:
        """Return when the object was put, in Unix seconds by the store's clock; 0 if the store does not say."""
        return max((info.modified for info in self._store.list(self.key, timeout=self._timeout)), default=0.0)

    def miss(self) -> None:
        """Read a missing object, which must give "not found".

        S3 answers "denied" to a caller that may not list, and a save needs to see "not found".
        """
        with suppress(NotFoundError):
            self._store.get(f"{self.key}-none", timeout=self._timeout)

    def remove(self, timeout: float = _DELETE) -> None:
        self._store.delete([self.key], timeout=timeout)


def probe(store: BlobStore, run_id: str, *, claims: bool = True) -> None:
    """Try the operations that a job needs from its store.

    Args:
        store: a store that retries, since it may be away for a moment.
        run_id: the run whose directory holds the object.
        claims: whether attempts are claimed there.

    Raises:
        DeniedError: a right is missing; the message names it.
        StoreError: the store fails otherwise, or returns other bytes than were put.
    """
    steps = StoreProbe(store, run_id)
    with _needs(store, "write"):
        steps.write()
    try:
        with _needs(store, "write"):
            # Safety needs unique keys: of two starts at the same moment, both may get the same number.
            if claims and (otherwise := steps.create()):
                log.warning(
                    "two starts of run %s at the same moment may get the same attempt number, so start one at a time [SG314]: %s",
                    run_id,
                    otherwise,
                )
        with _needs(store, "read"):
            steps.read()
        with _needs(store, "list"):
            steps.find()
            steps.miss()
    finally:
        _remove(store, steps)


def _remove(store: BlobStore, steps: StoreProbe) -> None:
    try:
        steps.remove()
    except StoreError as error:  # training goes on; the warning says that the store will grow
        log.warning(
            "spotguard cannot delete objects in the store, so old checkpoints pile up and cost money: %s%s [SG311]",
            error,
            _right(store, "delete", error),
        )


@contextmanager
def _needs(store: BlobStore, right: str) -> Iterator[None]:
    try:
        yield
    except DeniedError as error:
        raise DeniedError(
            "training was not started, because it could never be saved and restored: "
            f"{error}{_right(store, right, error)}"
        ) from error


def _right(store: BlobStore, right: str, error: StoreError) -> str:
    """Return the end of a message that names the missing right, in the cloud's own word if it has one.

    A refusal whose code is a mere status is no word of the store's: a proxy refuses.
    """
    if not isinstance(error, DeniedError) or error.code.isdigit():
        return ""
    name = right_to(store.url, right)
    return f"; the permission to {right} is missing{(f': {name}' if name else '')}"
