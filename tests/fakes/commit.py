"""The last requests of a save, made at once: what a checkpoint is written with where nobody uploads one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spotguard.hooks.checkpoint.format.codec import decode_marker
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import CommitMarker, RankManifest, most_bytes
from spotguard.hooks.checkpoint.index import IndexBuilder
from spotguard.hooks.checkpoint.marker import (
    encoded_index,
    encoded_manifest,
    encoded_marker,
    proven_alone,
)
from spotguard.providers.stores.base import BlobStore


def put_manifest(store: BlobStore, manifest: RankManifest, *, most: Callable[[int], int] = most_bytes) -> str:
    key, data = encoded_manifest(manifest, most)
    store.put(key, memoryview(data))
    return key


def put_marker(store: BlobStore, manifests: Iterable[RankManifest], *, created: float) -> None:
    key, data = encoded_marker(manifests, created)
    store.put(key, memoryview(data))


def mark_alone(store: BlobStore, mine: RankManifest, *, created: float) -> CommitMarker:
    key, data = proven_alone(mine, created)
    store.put(key, memoryview(data))
    return decode_marker(data, key)


def put_index(store: BlobStore, run_id: str, name: CheckpointName, index: IndexBuilder) -> None:
    key, data = encoded_index(run_id, name, index)
    store.put(key, memoryview(data))
