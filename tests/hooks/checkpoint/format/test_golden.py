"""A checkpoint that an old spotguard wrote loads for ever: the files in tests/golden are never made again."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest

from spotguard.hooks.checkpoint.attempts import newest_attempt
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole, whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import decode_attempt
from spotguard.hooks.checkpoint.format.keys import attempt_key
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.checkpoint.format.values.decoder import decode
from spotguard.hooks.checkpoint.format.values.sameness import same
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.stores.file import FileStore
from tests.golden.make_v1 import RUN, STATE, TENSORS, content

FOLDER = Path(__file__).parents[3] / "golden"


@pytest.fixture(params=["v1", "v3"])
def store(request: pytest.FixtureRequest) -> FileStore:
    """Of formats 1 and 3: the same run; that of format 3 goes on with a checkpoint that lacks extras."""
    return FileStore(FOLDER / request.param)


@pytest.fixture
def second() -> FileStore:
    """Of format 2."""
    return FileStore(FOLDER / "v2")


def read(store: FileStore, whole: WholeCheckpoint, name: str) -> bytes:
    """A tensor's bytes, put together from its chunks; every one of them is whole rows, or all."""
    merged = whole.tensors[name]
    parts = []
    for rank, chunk in merged.chunks:
        buffer = bytearray(chunk.end - chunk.start)
        store.read_into(whole.manifests[rank].object_key(chunk.object), chunk.start, memoryview(buffer))
        assert prod(chunk.sizes[1:]) == prod(merged.shape[1:])
        parts.append((chunk.offsets, bytes(buffer)))
    return b"".join(part for _, part in sorted(parts))


def test_the_newest_whole_one_is_found(store: FileStore) -> None:
    """Step 10 lacks a manifest; step 9 has no marker and counts."""
    assert [whole.name.step for whole in whole_checkpoints(store, RUN)] == [9, 8, 5]
    for deep in (False, True):
        lines = [each for each in list_checkpoints(store, RUN, deep=deep) if each.level != "partial-extras"]
        assert [(line.name.step, line.status, line.marked) for line in lines] == [
            (10, "partial", False), (9, "complete", False), (8, "complete", True), (5, "complete", True),
        ]  # fmt: skip


@pytest.mark.parametrize("step", [5, 8, 9])
def test_every_byte_is_what_was_written(store: FileStore, step: int) -> None:
    """By its CRCs, and by the rule that it was made by."""
    whole = find_whole(store, RUN, step=step)
    assert whole is not None
    assert verify(store, whole) == []
    assert set(whole.tensors) == {*TENSORS, "@00000/rng", "@00001/rng"}
    for name, (dtype, stored, shape, _) in TENSORS.items():
        merged = whole.tensors[name]
        assert (merged.dtype, merged.stored, merged.shape) == (dtype, stored, shape)
        assert read(store, whole, name) == content(name, 8 if step == 9 else step)
    assert read(store, whole, "@00001/rng") == content("@00001/rng", step)


def test_the_state_is_what_was_saved(store: FileStore) -> None:
    """In value and type."""
    whole = find_whole(store, RUN)
    assert whole is not None

    def give(name: str) -> Any:
        return name

    for manifest in whole.manifests:
        for name, value in STATE.items():
            assert same(value, decode(manifest.state[name], give)) == ""
        assert decode(manifest.state["rng"], give) == f"@{manifest.rank:05d}/rng"
        assert f"v{manifest.format}" == store.url.rpartition("/")[2]
        assert (manifest.kind, manifest.level) == ("emergency", "full")


def test_attempts_are_read(store: FileStore) -> None:
    """And counted on from."""
    assert newest_attempt(store, RUN) == (2 if store.url.endswith("v1") else 3)
    record = decode_attempt(store.get(attempt_key(RUN, 2)), "k")
    assert (record.info, record.incarnation, record.world) == ({"host": "a"}, "nonce-2", 2)


def test_its_objects_open_with_safetensors(store: FileStore) -> None:
    """As anybody would open them."""
    safetensors = pytest.importorskip("safetensors")
    keys = [info.key for info in store.list("") if info.key.endswith(".safetensors")]
    assert len(keys) > 10
    for key in keys:
        assert safetensors.deserialize(store.get(key))


def test_those_that_lack_extras_are_found_with_who_lacks_them(second: FileStore) -> None:
    """By manifests and by the marker; the full one beside them is of format 1."""
    assert [whole.name.step for whole in whole_checkpoints(second, RUN)] == [5]
    assert [
        (whole.name.step, whole.level, whole.missing, {each.format for each in whole.manifests})
        for whole in whole_checkpoints(second, RUN, levels=LEVELS)
    ] == [(12, "partial-extras", (1,), {2}), (9, "partial-extras", (1,), {2}), (5, "full", (), {1})]
    for deep in (False, True):
        lines = list_checkpoints(second, RUN, deep=deep)
        assert [(line.name.step, line.status, line.marked, line.level, line.missing) for line in lines] == [
            (12, "complete", False, "partial-extras", (1,)),
            (9, "complete", True, "partial-extras", (1,)),
            (5, "complete", True, "full", ()),
        ]


@pytest.mark.parametrize("step", [5, 9, 12])
def test_every_byte_of_format_2_is_what_was_written(second: FileStore, step: int) -> None:
    """The dead rank's generators are in no manifest."""
    whole = find_whole(second, RUN, step=step, levels=LEVELS)
    assert whole is not None
    assert verify(second, whole) == []
    assert set(whole.tensors) == {*TENSORS, "@00000/rng", *(["@00001/rng"] if step == 5 else [])}
    for name, (dtype, stored, shape, _) in TENSORS.items():
        merged = whole.tensors[name]
        assert (merged.dtype, merged.stored, merged.shape) == (dtype, stored, shape)
        assert read(second, whole, name) == content(name, step)
    assert (whole.manifests[1].state == {}) == (step != 5)


def test_one_of_format_3_that_lacks_extras_is_read_too() -> None:
    """With the columns of a rank that holds nothing."""
    third = FileStore(FOLDER / "v3")
    whole = find_whole(third, RUN, step=12, levels=LEVELS)
    assert whole is not None
    assert verify(third, whole) == []
    assert (whole.level, whole.missing, {each.format for each in whole.manifests}) == (
        "partial-extras",
        (1,),
        {3},
    )
    assert [len(each.tensors) for each in whole.manifests] == [len(TENSORS) + 1, 0]
    for name in TENSORS:
        assert read(third, whole, name) == content(name, 12)
