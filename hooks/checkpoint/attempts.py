"""Attempts: the steps by which a save becomes a checkpoint, and a start of the job becomes an attempt.

The order of a save is fixed: objects, then this rank's manifest, then the marker, by any rank that sees the set
complete. If the process dies in between, no restore takes the remains. No rank asks another one here; the store is
the only witness.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from ...providers.clock import Clock, SystemClock
from ...providers.errors import CheckpointError, NotFoundError, NotSupportedError, StoreError
from ...providers.stores.base import BlobStore
from .format.codec import decode_attempt, encode_attempt
from .format.keys import (
    CheckpointName,
    attempt_key,
    attempts_prefix,
    checkpoints_prefix,
    parse_attempt,
    side_key,
)
from .format.manifest import AttemptRecord

#: Attempts whose starts are read.
_STARTS = 20
#: Simultaneous starts beyond this number mean that the store gives false answers.
_MAX_RIVALS = 1000
#: Seconds between a claim by `put` and the look whether it stands, in a store without a conditional create.
_SETTLE = 2.0


def claim_attempt(
    store: BlobStore,
    run_id: str,
    info: Mapping[str, Any],
    *,
    incarnation: str = "",
    world: int = 1,
    created: float = 0.0,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> int:
    """Claim a number for this start of the job, above all others and unique, and return it.

    Claim before choosing what to restore. A prune by an older attempt may have begun before the claim; it keeps the
    newest checkpoint of that moment. A prune that begins after the claim sees it and deletes nothing.

    The record is read back, because a store's conditional create may not be atomic (Swift checks first and puts
    then), or the store may have none. If two starts both got a yes, the start whose record was overwritten goes on to
    the next number. This proves nothing, since another start may overwrite the record later still. The six verbs of a
    store allow no proof.

    Args:
        clock: the clock for the pause of a claim in a store without a conditional create.

    Raises:
        StoreError: 1000 attempts in a row were taken by others, or the store failed.
    """
    incarnation = incarnation or uuid.uuid4().hex  # no two claims have the same bytes
    number = 1 + newest_attempt(store, run_id, timeout=timeout)
    for attempt in range(number, number + _MAX_RIVALS):
        record = AttemptRecord(run_id, attempt, incarnation, world, dict(info), created)
        data = memoryview(encode_attempt(record))
        key = attempt_key(run_id, attempt)
        if create_once(store, key, data, timeout=timeout, clock=clock) and _reads(store, key, data, timeout):
            return attempt
    raise StoreError(
        f"{store.url}: other starts claimed {_MAX_RIVALS} attempts of run {run_id} while this one tried "
        "to; check what else writes there"
    )


def create_once(
    store: BlobStore,
    key: str,
    data: memoryview,
    *,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> bool:
    """Create the object unless another one has its key; return whether these bytes stand.

    A store without a conditional create gets a look, a put, a pause and another look. The pause is for rivals that looked
    before this put was visible: theirs arrives, and the last one holds. If a rival's put takes longer than the pause,
    both hold the claim (docs/reference/stores.md).
    """
    try:
        return store.put_if_absent(key, data, timeout=timeout)
    except NotSupportedError:
        pass
    try:
        if store.get(key, timeout=timeout) != data:
            return False
    except NotFoundError:
        store.put(key, data, timeout=timeout)
    # Also if the bytes were there, from a try whose answer was lost or from another rank of this side, a moment ago.
    pause = _SETTLE if timeout is None else min(_SETTLE, timeout / 4)
    (clock or SystemClock()).wait(threading.Event(), pause)
    return _reads(store, key, data, timeout)


def _reads(store: BlobStore, key: str, data: memoryview, timeout: float | None) -> bool:
    try:
        return store.get(key, timeout=timeout) == data
    except NotFoundError:
        return False  # removed since: the number is spent, like any other


def claim_step(
    store: BlobStore,
    run_id: str,
    name: CheckpointName,
    *,
    incarnation: str,
    side: int,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> bool:
    """Claim a step for a save that lacks ranks, and return whether this side of the job has it.

    A cut network parts a job, and each side counts the other as dead. With replicated state both could save this step, each
    without the other's extras. The store of blobs is the one place that both sides write to, so the first claim there holds. The
    same side may claim a step any number of times.

    Args:
        side: the store in which this side agrees: 0 for the job's own, 1 for the second one.
        clock: as for `claim_attempt`.

    Raises:
        StoreError: the store failed.
    """
    key = side_key(run_id, name.attempt, name.step)
    data = memoryview(json.dumps({"incarnation": incarnation, "side": side}).encode())
    return create_once(store, key, data, timeout=timeout, clock=clock) or _reads(store, key, data, timeout)


def attempt_starts(store: BlobStore, run_id: str, *, timeout: float | None = None) -> dict[int, float]:
    """Return when each of the newest attempts began, in wall seconds; unreadable records are left out."""
    claims = [
        parse_attempt(run_id, info.key) for info in store.list(attempts_prefix(run_id), timeout=timeout)
    ]
    starts = {}
    for attempt in sorted(claim for claim in claims if claim is not None)[-_STARTS:]:
        if (record := attempt_record(store, run_id, attempt, timeout=timeout)) is not None:
            starts[attempt] = record.created
    return starts


def attempt_record(
    store: BlobStore, run_id: str, attempt: int, *, timeout: float | None = None
) -> AttemptRecord | None:
    """Return the record of one start, or None if it cannot be read: another format, or pruned.

    Raises:
        StoreError: the store failed.
    """
    key = attempt_key(run_id, attempt)
    try:
        return decode_attempt(store.get(key, timeout=timeout), key)
    except (CheckpointError, NotFoundError):
        return None


def claims(store: BlobStore, run_id: str, *, timeout: float | None = None) -> dict[int, float]:
    """Return when each attempt that has a record was claimed, in Unix seconds by the store's clock; 0 if it does not say."""
    listed = store.list(attempts_prefix(run_id), timeout=timeout)
    return {parse_attempt(run_id, info.key) or 0: info.modified for info in listed}


def newest_claim(store: BlobStore, run_id: str, *, timeout: float | None = None) -> int:
    """Return the highest attempt that has a record, 0 for none."""
    return max(claims(store, run_id, timeout=timeout), default=0)


def newest_attempt(store: BlobStore, run_id: str, *, timeout: float | None = None) -> int:
    """Return the highest attempt that left a trace, 0 for none."""
    newest = newest_claim(store, run_id, timeout=timeout)
    # Records may have been removed by hand; the checkpoints of those attempts still count.
    prefix = checkpoints_prefix(run_id)
    for info in store.list(prefix, timeout=timeout):
        name = CheckpointName.parse(info.key[len(prefix) :].partition("/")[0])
        newest = max(newest, name.attempt if name else 0)
    return newest
