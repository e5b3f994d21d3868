"""A checkpoint of the first format loads for ever, and one from before it is refused: the files in tests/golden are never made again."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import pytest

from spotguard.hooks.checkpoint.attempts import newest_attempt
from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole, whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError, decode_attempt
from spotguard.hooks.checkpoint.format.keys import attempt_key
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.checkpoint.format.values.decoder import decode
from spotguard.hooks.checkpoint.format.values.sameness import same
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.restore.reads.verify import verify
from spotguard.providers.stores.file import FileStore
from tests.fakes.checkpoint import Save
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore
from tests.golden.make_v1 import RUN, STATE, TENSORS, content

FOLDER = Path(__file__).parents[3] / "golden"


@pytest.fixture
def store() -> FileStore:
    """The store of format 1."""
    return FileStore(FOLDER / "v1")


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


def test_the_newest_complete_checkpoint_is_found(store: FileStore) -> None:
    """Step 12 lacks extras; step 10 lacks a manifest; step 9 has no marker and counts."""
    assert [whole.name.step for whole in whole_checkpoints(store, RUN)] == [9, 8, 5]
    assert [whole.name.step for whole in whole_checkpoints(store, RUN, levels=LEVELS)] == [12, 9, 8, 5]
    for deep in (False, True):
        assert [
            (line.name.step, line.status, line.marked, line.level, line.missing)
            for line in list_checkpoints(store, RUN, deep=deep)
        ] == [
            (12, "complete", True, "partial-extras", (1,)),
            (10, "partial", False, None, ()),
            (9, "complete", False, "full", ()),
            (8, "complete", True, "full", ()),
            (5, "complete", True, "full", ()),
        ]


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
        assert decode(manifest.state["rng"], give) == {"torch": f"@{manifest.rank:05d}/rng"}
        assert (manifest.kind, manifest.level) == ("emergency", "full")


def test_attempts_are_read(store: FileStore) -> None:
    """And counted on from."""
    assert newest_attempt(store, RUN) == 3
    record = decode_attempt(store.get(attempt_key(RUN, 2)), "k")
    assert (record.info, record.incarnation, record.world) == ({"host": "a"}, "nonce-2", 2)


def test_its_objects_open_with_safetensors(store: FileStore) -> None:
    """As anybody would open them."""
    safetensors = pytest.importorskip("safetensors")
    keys = [info.key for info in store.list("") if info.key.endswith(".safetensors")]
    assert len(keys) > 10
    for key in keys:
        assert safetensors.deserialize(store.get(key))


def test_every_byte_is_read_without_the_extras_of_a_dead_rank(store: FileStore) -> None:
    """Its generators are in no manifest, and its columns are empty."""
    whole = find_whole(store, RUN, step=12, levels=LEVELS)
    assert whole is not None
    assert verify(store, whole) == []
    assert set(whole.tensors) == {*TENSORS, "@00000/rng"}
    for name, (dtype, stored, shape, _) in TENSORS.items():
        merged = whole.tensors[name]
        assert (merged.dtype, merged.stored, merged.shape) == (dtype, stored, shape)
        assert read(store, whole, name) == content(name, 12)
    assert [len(each.tensors) for each in whole.manifests] == [len(TENSORS) + 1, 0]
    assert whole.manifests[1].state == {}


#: The refusal of a store that was written before 0.1.0: the file, what was found, what was expected, and what to do.
REFUSAL = (
    r"^golden/checkpoints/000000005-0001-0000/00000-of-00002\.json: it has no 'store_format', expected 1: a spotguard older "
    r"than 0\.1\.0 wrote it; read it with that one, or begin a new run under another run id \[SG603\]$"
)


@pytest.fixture
def earlier() -> FakeStore:
    """Manifests, a marker and an attempt's record as the last commit before 0.1.0 wrote them."""
    store, folder = FakeStore(), FOLDER / "before-0.1.0"
    for path in sorted(folder.rglob("*.json")):
        store.put(str(path.relative_to(folder)), memoryview(path.read_bytes()))
    assert len(store.objects) == 4
    return store


def test_a_store_from_before_0_1_0_is_refused_by_name(earlier: FakeStore) -> None:
    with pytest.raises(UnsupportedFormatError, match=REFUSAL):
        find_whole(earlier, RUN)
    (line,) = list_checkpoints(earlier, RUN)
    assert (line.status, line.marked) == ("unsupported", True)
    assert re.match(REFUSAL, line.reason)


@pytest.mark.parametrize("anew", ["", "1"])
def test_no_training_begins_beside_a_checkpoint_from_before_0_1_0(
    anew: str, earlier: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`restore` raises, with `--begin-anew` too, so that no script trains from step 0 unnoticed."""
    pytest.importorskip("torch")
    from tests.fakes.training import guarded

    monkeypatch.setenv("SPOTGUARD_BEGIN_ANEW", anew)
    before = dict(earlier.objects)
    with guarded(earlier, {"notes": {"a": 1}}, RUN) as guard:
        with pytest.raises(UnsupportedFormatError, match=REFUSAL):
            guard.restore()
        assert before.items() <= earlier.objects.items()


def test_no_prune_deletes_a_checkpoint_from_before_0_1_0(earlier: FakeStore) -> None:
    before = dict(earlier.objects)
    for step in (10, 20):
        Save(run_id=RUN, attempt=2, step=step).write(earlier)
    assert [name.step for name in prune(earlier, RUN, keep=1)] == [10]
    assert before.items() <= earlier.objects.items()
