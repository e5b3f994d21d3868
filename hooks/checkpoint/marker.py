"""New."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.stores.base import BlobStore
from .format.codec import decode_marker, encode_manifest, encode_marker
from .format.coverage import coverage
from .format.keys import MARKER, CheckpointName, checkpoint_prefix, manifest_name
from .format.manifest import CommitMarker, RankManifest, most_bytes


def put_manifest(
    store: BlobStore,
    manifest: RankManifest,
    *,
    timeout: float | None = None,
    most: Callable[[int], int] = most_bytes,
) -> str:
    """Say what this rank wrote, once all of it is in the store; returns the key.

    Args:
        store: where.
        manifest: what to say.
        timeout: of the request.
        most: by the number of ranks, the bytes of the largest manifest that is read back.

    Raises:
        CheckpointError: the manifest is too large to be read back.
    """
    key = checkpoint_prefix(manifest.run_id, manifest.checkpoint) + manifest_name(
        manifest.rank, manifest.world
    )
    data = encode_manifest(manifest)
    if len(data) > (limit := most(manifest.world)):
        raise CheckpointError(
            f"the manifest of rank {manifest.rank} has {len(data)} bytes, and at most {limit} are read back; "
            "register large lists as tensors"
        )
    store.put(key, memoryview(data), timeout=timeout)
    return key


def put_marker(
    store: BlobStore, manifests: Iterable[RankManifest], *, created: float, timeout: float | None = None
) -> CommitMarker:
    """Mark a checkpoint whose full set of manifests was seen. Two that do so write the same but for the time."""
    marker = CommitMarker.of(manifests, created)
    key = checkpoint_prefix(marker.run_id, marker.checkpoint) + MARKER
    store.put(key, memoryview(encode_marker(marker)), timeout=timeout)
    return marker


def is_marked(store: BlobStore, run_id: str, name: CheckpointName, *, timeout: float | None = None) -> bool:
    """Whether its marker is there and can be read: else it is written anew. One request; raises StoreError."""
    key = checkpoint_prefix(run_id, name) + MARKER
    try:
        decode_marker(store.get(key, timeout=timeout), key)
    except (NotFoundError, CheckpointError):
        return False
    return True


def is_complete(
    store: BlobStore, run_id: str, name: CheckpointName, world: int, *, timeout: float | None = None
) -> bool:
    """Whether the manifests of all its ranks are there, marked or not: each was put after its objects. One listing."""
    prefix = checkpoint_prefix(run_id, name)
    there = {info.key.removeprefix(prefix) for info in store.list(prefix, timeout=timeout)}
    return all(manifest_name(rank, world) in there for rank in range(world))


def mark_alone(
    store: BlobStore, mine: RankManifest, *, created: float, timeout: float | None = None
) -> CommitMarker:
    """After `put_manifest`, in a job of one process: see that this manifest is a whole, and mark it. (`together` does so for
    several.)

    Raises:
        CheckpointError: it is none; nothing is marked.
    """
    return put_marker(store, coverage([mine]).manifests, created=created, timeout=timeout)
