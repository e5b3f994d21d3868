"""A manifest that was changed later contradicts the headers of its objects, or its own state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.format.safetensors_header import check_headers, check_names
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


# --- names -----------------------------------------------------------------------------------------------------


def held(state: dict[str, Any], *names: str, **options: Any) -> RankManifest:
    """A manifest that lists tensors of these names."""
    chunk = Chunk((), (), 0, 8, 12, 0)
    entries = tuple(TensorEntry(name, "float32", (), (chunk,)) for name in names)
    return RankManifest("run", 10, 1, 0, 0, 1, tensors=entries, state=state, **options)


def named(name: str, word: str = "tensor") -> dict[str, str]:
    return {"$": word, "name": name}


SOUND: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ()),
    ({"notes": {"losses": [1, 2]}}, ()),
    ({"model": {"w": named("model/w"), "tied": named("model/w")}}, ("model/w",)),
    ({"ema": named("ema"), "rng": [named("@00001/rng#4")]}, ("ema", "@00001/rng#4")),
    ({"a": {"w": named("a/w")}, "a/b": {"w": named("a/b/w")}}, ("a/w", "a/b/w")),
    ({"one": {"s": named("one/s")}, "two": {"s": named("one/s")}}, ("one/s", "two/s")),
    (
        {"notes": {"p": named("@00000/notes#1", "parameter"), "t": {"$": "tuple", "items": []}}},
        ("@00000/notes#1",),
    ),
    ({"notes": {"a": {**named("@00000/notes#1", "numpy.ndarray"), "shape": []}}}, ("@00000/notes#1",)),
]


@pytest.mark.parametrize(("state", "names"), SOUND)
def test_each_tensor_has_its_place(state: dict[str, Any], names: tuple[str, ...]) -> None:
    check_names(held(state, *names))


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "a plain value": ({"model": {"w": 3}}, ("model/w",), "another value in place of tensor 'model/w'"),
    "another's": ({"a": {"w": named("b/w"), "v": named("a/v")}, "b": {"w": named("b/w")}}, ("a/v", "b/w"), "names tensor 'b/w'"),
    "for a number": ({"a": {"lr": named("b/w")}, "b": {"w": named("b/w")}}, ("b/w",), "names tensor 'b/w'"),
    "in its place": ({"a": {"w": named("b/v")}, "b": {"v": named("b/v")}}, ("a/w", "b/v"), "another value in place"),
    "of no name": ({"a": {}}, ("b/w",), "no place for tensor 'b/w'"),
    "that nobody lists": ({"a": {"w": named("a/w")}}, (), "names tensor 'a/w'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_tensor_out_of_its_place_is_found(kind: str) -> None:
    state, names, says = WRONG[kind]
    with pytest.raises(CheckpointError, match=says):
        check_names(held(state, *names))


def test_the_lower_levels_leave_state_out() -> None:
    """An optimizer without its moments still lists what its tree would name."""
    check_names(held({"a": {}}, "a/w", level="weights"))
