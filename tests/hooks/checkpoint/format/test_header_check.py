"""A manifest that was changed later contradicts the headers of its objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.manifest import RankManifest, TensorEntry
from spotguard.hooks.checkpoint.format.safetensors_header import check_headers
from spotguard.providers.errors import CheckpointError
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore


def manifests(**options: Any) -> list[RankManifest]:
    return Save(**options).write(FakeStore())


def tensor(manifest: RankManifest, name: str, change: Callable[[TensorEntry], TensorEntry]) -> RankManifest:
    """The same with one tensor changed."""
    entries = tuple(change(entry) if entry.name == name else entry for entry in manifest.tensors)
    assert entries != manifest.tensors
    return replace(manifest, tensors=entries)


def first(entry: TensorEntry, **change: Any) -> TensorEntry:
    return entry._replace(chunks=(entry.chunks[0]._replace(**change), *entry.chunks[1:]))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("target", [1024, 4096, 2**20])
def test_each_written_object_agrees_with_its_header(world: int, target: int) -> None:
    """In one object or in several, whole or by rows."""
    for manifest in manifests(world=world, target=target):
        check_headers(manifest)
        for index in range(len(manifest.objects)):
            check_headers(manifest, [index])


CHANGES: dict[str, Callable[[TensorEntry], TensorEntry]] = {
    "a dtype as large": lambda entry: entry._replace(dtype="int32"),
    "a stored dtype": lambda entry: entry._replace(stored="int32"),
    "another name": lambda entry: entry._replace(name="model.other"),
    "other sizes": lambda entry: first(entry, sizes=entry.chunks[0].sizes[::-1]),
    "other bytes": lambda entry: first(entry, start=entry.chunks[0].start + 8, end=entry.chunks[0].end + 8),
    "no chunk": lambda entry: entry._replace(chunks=entry.chunks[1:]),
    "a chunk twice": lambda entry: entry._replace(chunks=(*entry.chunks, entry.chunks[0])),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_tensor_that_is_described_otherwise_is_found(kind: str) -> None:
    """The bytes are the very same, and most of these tile the tensor."""
    (manifest,) = manifests(world=1)
    spoilt = tensor(manifest, "model.embed.weight", CHANGES[kind])
    with pytest.raises(
        CheckpointError, match=r"safetensors has a header that does not match the tensors in its manifest"
    ):
        check_headers(spoilt)


def test_only_the_objects_that_are_wanted_are_looked_at() -> None:
    (manifest,) = manifests(world=1, target=2048)
    wrong = {
        chunk.object for entry in manifest.tensors if entry.name == "model.odd" for chunk in entry.chunks
    }
    spoilt = tensor(
        manifest, "model.odd", lambda entry: entry._replace(dtype="complex64", stored="complex128")
    )
    check_headers(spoilt)  # the bytes are the same: what they become is the tensor's own dtype
    spoilt = tensor(manifest, "model.odd", lambda entry: entry._replace(name="model.even"))
    others = set(range(len(manifest.objects))) - wrong
    assert others
    check_headers(spoilt, others)
    with pytest.raises(CheckpointError):
        check_headers(spoilt, wrong)


def test_an_earlier_checkpoints_object_may_hold_more() -> None:
    """Its other tensors are not referred to."""
    base = manifests(world=1)
    (manifest,) = manifests(world=1, save=1, base=base)
    assert any(entry.checkpoint for entry in manifest.objects)
    check_headers(manifest)
