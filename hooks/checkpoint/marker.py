"""The two requests that commit a checkpoint: each rank's manifest, then the marker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.stores.base import BlobStore
from .format.codec import decode_manifest, decode_marker, encode_manifest, encode_marker
from .format.coverage import coverage
from .format.keys import INDEX, MARKER, CheckpointName, checkpoint_prefix
from .format.manifest import CommitMarker, RankManifest, most_bytes
from .index import IndexBuilder


def encoded_manifest(manifest: RankManifest, most: Callable[[int], int] = most_bytes) -> tuple[str, bytes]:
    """Return the key and the bytes of a manifest. It is put once all its objects are in the store.

    Args:
        manifest: the manifest of one rank.
        most: returns the largest size in bytes that is read back, for a number of ranks.

    Raises:
        CheckpointError: the manifest is too large to be read back.
    """
    data = encode_manifest(manifest)
    if len(data) > (limit := most(manifest.world)):
        raise CheckpointError(
            f"the manifest of rank {manifest.rank} has {len(data)} bytes, but a restore reads at most "
            f"{limit}; register large lists as tensors"
        )
    return manifest.key, data


def encoded_marker(manifests: Iterable[RankManifest], created: float) -> tuple[str, bytes]:
    """Return the key and the bytes of the marker of a full set of manifests. Two writers' markers differ in the time only."""
    marker = CommitMarker.of(manifests, created)
    return checkpoint_prefix(marker.run_id, marker.checkpoint) + MARKER, encode_marker(marker)


def proven_alone(mine: RankManifest, created: float) -> tuple[str, bytes]:
    """Prove that this manifest can be read back and is a complete checkpoint, in a job of one process.

    Returns:
        The key and the bytes of its marker. `hooks.save.commit` does the same for several ranks.

    Raises:
        CheckpointError: the manifest is not a complete checkpoint.
    """
    key, data = encoded_manifest(mine)
    return encoded_marker(coverage([decode_manifest(data, key)]).manifests, created)


def encoded_index(run_id: str, name: CheckpointName, index: IndexBuilder) -> tuple[str, bytes]:
    """Return the key and the bytes of the index of a checkpoint that is complete."""
    return checkpoint_prefix(run_id, name) + INDEX, index.encode()


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
