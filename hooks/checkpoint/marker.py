"""The two requests that commit a checkpoint: each rank's manifest, then the marker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.stores.base import BlobStore
from .format.codec import decode_manifest, decode_marker, encode_manifest, encode_marker
from .format.coverage import coverage
from .format.keys import INDEX, MARKER, CheckpointName, checkpoint_prefix, manifest_name
from .format.manifest import CommitMarker, RankManifest, most_bytes
from .index import IndexBuilder


def put_manifest(
    store: BlobStore,
    manifest: RankManifest,
    *,
    timeout: float | None = None,
    most: Callable[[int], int] = most_bytes,
) -> str:
    """Put this rank's manifest, once all its objects are in the store, and return its key.

    Args:
        store: the store.
        manifest: the manifest of this rank.
        timeout: seconds for the request.
        most: returns the largest size in bytes that is read back, for a number of ranks.

    Raises:
        CheckpointError: the manifest is too large to be read back.
    """
    key = checkpoint_prefix(manifest.run_id, manifest.checkpoint) + manifest_name(
        manifest.rank, manifest.world
    )
    data = encode_manifest(manifest)
    if len(data) > (limit := most(manifest.world)):
        raise CheckpointError(
            f"the manifest of rank {manifest.rank} has {len(data)} bytes, but a restore reads at most "
            f"{limit}; register large lists as tensors"
        )
    store.put(key, memoryview(data), timeout=timeout)
    return key


def put_marker(
    store: BlobStore, manifests: Iterable[RankManifest], *, created: float, timeout: float | None = None
) -> CommitMarker:
    """Mark a checkpoint whose full set of manifests was seen. Two writers put the same marker but for the time."""
    marker = CommitMarker.of(manifests, created)
    key = checkpoint_prefix(marker.run_id, marker.checkpoint) + MARKER
    store.put(key, memoryview(encode_marker(marker)), timeout=timeout)
    return marker


def put_index(
    store: BlobStore, run_id: str, name: CheckpointName, index: IndexBuilder, *, timeout: float | None = None
) -> None:
    """Put the index of a checkpoint that is complete."""
    store.put(checkpoint_prefix(run_id, name) + INDEX, memoryview(index.encode()), timeout=timeout)


def read_marker(
    store: BlobStore, run_id: str, name: CheckpointName, *, timeout: float | None = None
) -> CommitMarker | None:
    """Return its marker; None if it is not in the store or cannot be read: the caller writes it again. One request.

    Raises:
        StoreError: the store failed.
    """
    key = checkpoint_prefix(run_id, name) + MARKER
    try:
        return decode_marker(store.get(key, timeout=timeout), key)
    except (NotFoundError, CheckpointError):
        return None


def has_all_manifests(
    store: BlobStore, run_id: str, name: CheckpointName, world: int, *, timeout: float | None = None
) -> bool:
    """Return whether the manifests of all its ranks are in the store, marked or not; one listing.

    Each manifest was put after its objects, so the checkpoint is complete then.
    """
    prefix = checkpoint_prefix(run_id, name)
    there = {info.key.removeprefix(prefix) for info in store.list(prefix, timeout=timeout)}
    return all(manifest_name(rank, world) in there for rank in range(world))


def mark_alone(
    store: BlobStore, mine: RankManifest, *, created: float, timeout: float | None = None
) -> CommitMarker:
    """Prove that this manifest can be read back and is a complete checkpoint, and mark it, in a job of one process.

    Call it after `put_manifest`. `hooks.save.commit` does the same for several ranks.

    Raises:
        CheckpointError: the manifest is not a complete checkpoint; nothing is marked.
    """
    key = checkpoint_prefix(mine.run_id, mine.checkpoint) + manifest_name(mine.rank, mine.world)
    readable = decode_manifest(encode_manifest(mine), key)
    return put_marker(store, coverage([readable]).manifests, created=created, timeout=timeout)
