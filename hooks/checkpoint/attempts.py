"""The steps by which a save becomes a checkpoint, and by which a start of the job becomes an attempt.

Order is all: objects, then this rank's manifest, then (by whoever sees the set complete) the marker. A process that
dies in between leaves what no restore takes. Nothing here asks another rank anything; the store is the only witness.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ...providers.errors import CheckpointError, NotFoundError, StoreError
from ...providers.stores.base import BlobStore
from .format.codec import decode_attempt, encode_attempt
from .format.keys import CheckpointName, attempt_key, attempts_prefix, checkpoints_prefix, parse_attempt
from .format.manifest import AttemptRecord

#: More starts than that at the same moment: the store is not telling the truth.
_MAX_RIVALS = 1000


def claim_attempt(
    store: BlobStore,
    run_id: str,
    info: Mapping[str, Any],
    *,
    incarnation: str = "",
    world: int = 1,
    created: float = 0.0,
    timeout: float | None = None,
) -> int:
    """The number of this start of the job: above all others, and nobody else's.

    Claim before choosing what to restore: a prune by an older attempt that began earlier leaves what is newest then,
    and one that begins later sees this claim and deletes nothing.

    The record is read back, for a store's conditional create may be none (Swift's looks first and puts then): of two
    that were both told yes, the one that was written over goes on to the next number. It is no proof, since somebody
    may write over it later still; nothing that six verbs can do is.
    """
    incarnation = incarnation or uuid.uuid4().hex  # no two claims have the same bytes
    number = 1 + newest_attempt(store, run_id, timeout=timeout)
    for attempt in range(number, number + _MAX_RIVALS):
        record = AttemptRecord(run_id, attempt, incarnation, world, dict(info), created)
        data = memoryview(encode_attempt(record))
        key = attempt_key(run_id, attempt)
        if store.put_if_absent(key, data, timeout=timeout) and _reads(store, key, data, timeout):
            return attempt
    raise StoreError(
        f"{store.url}: {_MAX_RIVALS} attempts of run {run_id} were taken while this one asked; look at it"
    )


def _reads(store: BlobStore, key: str, data: memoryview, timeout: float | None) -> bool:
    try:
        return store.get(key, timeout=timeout) == data
    except NotFoundError:
        return False  # taken away again: the number is spent, as any other


def attempt_starts(
    store: BlobStore, run_id: str, *, last: int = 20, timeout: float | None = None
) -> list[float]:
    """When the newest attempts began, in wall seconds; one that cannot be read is left out."""
    claims = [
        parse_attempt(run_id, info.key) for info in store.list(attempts_prefix(run_id), timeout=timeout)
    ]
    starts = []
    for attempt in sorted(claim for claim in claims if claim is not None)[-last:]:
        if (record := attempt_record(store, run_id, attempt, timeout=timeout)) is not None:
            starts.append(record.created)
    return starts


def attempt_record(
    store: BlobStore, run_id: str, attempt: int, *, timeout: float | None = None
) -> AttemptRecord | None:
    """What one start has said of itself; None where that cannot be read: of a newer format, or pruned. Raises StoreError."""
    key = attempt_key(run_id, attempt)
    try:
        return decode_attempt(store.get(key, timeout=timeout), key)
    except (CheckpointError, NotFoundError):
        return None


def newest_claim(store: BlobStore, run_id: str, *, timeout: float | None = None) -> int:
    """The highest attempt that has a record, 0 for none."""
    claims = store.list(attempts_prefix(run_id), timeout=timeout)
    return max((parse_attempt(run_id, info.key) or 0 for info in claims), default=0)


def newest_attempt(store: BlobStore, run_id: str, *, timeout: float | None = None) -> int:
    """The highest attempt that left a trace, 0 for none."""
    newest = newest_claim(store, run_id, timeout=timeout)
    # Records may have been removed by hand; what they saved still counts.
    prefix = checkpoints_prefix(run_id)
    for info in store.list(prefix, timeout=timeout):
        name = CheckpointName.parse(info.key[len(prefix) :].partition("/")[0])
        newest = max(newest, name.attempt if name else 0)
    return newest
