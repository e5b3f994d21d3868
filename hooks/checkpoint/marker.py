"""The small objects of a save: SAVING.json announces its commit, each rank's manifest and the marker are the commit.

SAVING.json says until when an emergency save may still complete its checkpoint. A replacement machine can start while the old one still saves: a Kubernetes Job makes the next pod as soon as the last one is
told to end, and a group of instances can launch before it terminates. Such a start would find no newer checkpoint, train from an
older one, and lose steps that are whole a moment later. The file tells it how long to wait.

The file is a hint and no promise. Its date is the store's own, so the clocks of the two machines do not matter. A start waits no
longer than the file says, and then takes what is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...providers.errors import CheckpointError, NotFoundError, StateError
from ...providers.stores.base import BlobStore
from .catalog import CheckpointFolder, ReadableStore
from .format.codec import (
    decode_manifest,
    decode_marker,
    decode_saving,
    encode_manifest,
    encode_marker,
    encode_saving,
)
from .format.coverage import coverage
from .format.keys import INDEX, MARKER, SAVING, CheckpointName, checkpoint_prefix
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
    try:
        data = encode_manifest(manifest)
    except StateError as error:
        raise CheckpointError(f"the manifest of rank {manifest.rank}: {error}") from error
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
        The key and the bytes of its marker. `hooks.commit` does the same for several ranks.

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


# --- the announcement ---


@dataclass(frozen=True, slots=True)
class SaveInFlight:
    """An announced emergency save whose checkpoint is not complete."""

    folder: CheckpointFolder
    #: When the save is over at the latest, in Unix seconds by the store's clock.
    until: float


def put_saving(
    store: BlobStore, run_id: str, name: CheckpointName, left: float, *, timeout: float | None = None
) -> None:
    """Announce a save.

    Args:
        store: the store.
        run_id: the run.
        name: the checkpoint.
        left: seconds until the save's deadline.
        timeout: seconds for the request.
    """
    store.put(checkpoint_prefix(run_id, name) + SAVING, memoryview(encode_saving(left)), timeout=timeout)


def newest_in_flight(store: ReadableStore, folders: list[CheckpointFolder]) -> SaveInFlight | None:
    """Return the newest announced save that is not complete, or None if there is none or a complete checkpoint is newer.

    Args:
        store: the store.
        folders: all checkpoints of a run, newest first.
    """
    for folder in folders:
        if folder.complete:
            return None
        if folder.announced:
            key = folder.prefix + SAVING
            try:
                left = decode_saving(store.get(key), key)
            except (CheckpointError, NotFoundError):  # damaged, or removed together with its save
                continue
            return SaveInFlight(folder, folder.announced + left)
    return None
