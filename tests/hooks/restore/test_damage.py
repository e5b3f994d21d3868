"""Whatever one byte, object or manifest becomes: a restore loads what was saved, or the next older, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError, encode_manifest
from spotguard.hooks.checkpoint.format.crc import crc32
from spotguard.hooks.checkpoint.format.keys import manifest_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.format.safetensors_header import header
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.restore.restore import restore
from spotguard.hooks.state.restore_plan import RestorePlan
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import CheckpointError
from spotguard.providers.stores.base import ObjectInfo
from tests.fakes.called import CalledStore, Request
from tests.fakes.checkpoint import Save
from tests.fakes.commit import put_manifest
from tests.fakes.store import FakeStore
from tests.fakes.training import different, guarded, restored, small
from tests.hooks.restore.two_checkpoints import TOTAL, Made, Stores, made, saved, stores

pytestmark = pytest.mark.torch
__all__ = ["made", "stores"]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    spoilt = bytearray(data)
    spoilt[at] ^= 1 << bit
    return bytes(spoilt)


def places(whole: WholeCheckpoint) -> list[tuple[str, str, int, int]]:
    """(tensor, key, first byte, end) of every chunk, extras and generators included."""
    found = [
        (name, whole.manifests[rank].object_key(chunk.object), chunk.start, chunk.end)
        for name, tensor in whole.tensors.items()
        for rank, chunk in tensor.chunks
    ]
    assert len(found) > 20
    return found


# --- one bit ---------------------------------------------------------------------------------------------------


def test_a_bit_flipped_in_any_chunk_is_never_loaded(made: Made, stores: Stores) -> None:
    """Every chunk of the newest checkpoint in its turn, its first, its last and a seeded byte."""
    objects, states, whole = made
    chance = random.Random(7)
    for number, (name, key, start, end) in enumerate(places(whole)):
        at = [start, end - 1, chance.randrange(start, end)][number % 3]
        spoilt = {**objects, key: flipped(objects[key], at, chance.randrange(8))}
        step, state = restored(stores(spoilt), small)
        assert step == TOTAL - 1, (name, at)
        assert different(state, states[TOTAL - 1]) == [], (name, at)


def test_a_bit_flipped_in_a_header_harms_no_restore(made: Made, stores: Stores) -> None:
    """No restore reads it: the manifest says where all is. `verify` does, and says so. Every 16th byte."""
    objects, states, whole = made
    entry, key = whole.manifests[0].objects[0], whole.manifests[0].object_key(0)
    for at in range(0, entry.header, 16):
        store = stores({**objects, key: flipped(objects[key], at, at % 8)})
        assert [damage.tensor for damage in verify(store, whole)] == [""]
        if not at % 256:
            step, state = restored(store, small)
            assert step == TOTAL
            assert different(state, states[TOTAL]) == []


def test_a_bit_flipped_in_a_manifest_is_never_believed(made: Made, stores: Stores) -> None:
    """Forty seeded places, and the file's two ends."""
    objects, states, whole = made
    chance = random.Random(11)
    key = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    size = len(objects[key])
    for at in [0, size - 1, *(chance.randrange(size) for _ in range(40))]:
        step, state = restored(stores({**objects, key: flipped(objects[key], at, at % 7)}), small)
        assert step == TOTAL - 1, at
        assert different(state, states[TOTAL - 1]) == [], at


# --- objects and manifests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left", [0, 1, 0.5, -1, None], ids=["empty", "a byte", "half", "all but one", "gone"]
)
@pytest.mark.parametrize("kind", ["object", "manifest"])
def test_a_shortened_or_missing_file_is_never_loaded(
    made: Made, stores: Stores, kind: str, left: float | None
) -> None:
    objects, states, whole = made
    manifest = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    key = whole.manifests[0].object_key(0) if kind == "object" else manifest
    spoilt = dict(objects)
    if left is None:
        del spoilt[key]
    else:
        size = len(objects[key])
        spoilt[key] = objects[key][: int(left * size) if 0 < left < 1 else int(left) % size]
    step, state = restored(stores(spoilt), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


@pytest.mark.parametrize("loss", ["cut", "gone"])
def test_a_file_shortened_or_removed_after_the_listing_is_never_loaded(made: Made, loss: str) -> None:
    """The listing was right when it was made."""
    objects, states, whole = made
    key = whole.manifests[0].object_key(0)

    store = FakeStore()
    store.objects = dict(objects)

    def lost(request: Request) -> None:
        if request.verb == "read_into" and loss == "gone":
            store.objects.pop(key, None)
        elif request.verb == "read_into" and key in store.objects:
            store.objects[key] = store.objects[key][:100]

    step, state = restored(CalledStore(store, lost), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


@pytest.mark.parametrize("change", [{"run_id": "other"}, {"attempt": 7}, {"step": TOTAL - 1}, {"save": 9}])
def test_a_manifest_of_elsewhere_is_never_loaded(
    made: Made, stores: Stores, change: dict[str, object]
) -> None:
    """Of another run, attempt, step or save, in this one's place: sound in itself, and its objects are there."""
    objects, states, whole = made
    foreign = replace(whole.manifests[0], **change)  # type: ignore[arg-type]
    key = f"run/checkpoints/{whole.name}/{manifest_name(0, 1)}"
    step, state = restored(stores({**objects, key: encode_manifest(foreign)}), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


def test_another_runs_checkpoint_in_this_ones_folder_is_never_loaded(stores: Stores) -> None:
    """Objects, manifest and marker, all of them copied: whole, and not ours."""
    own, other = FakeStore(), FakeStore()
    states = saved(own)
    saved(other, "other")
    objects = dict(own.objects)
    newest = find_whole(other, "other")
    assert newest is not None
    for key, data in other.objects.items():
        if str(newest.name) in key:
            objects[f"run/{key.partition('/')[2]}"] = data
    step, state = restored(stores(objects), small)
    assert step == TOTAL - 1
    assert different(state, states[TOTAL - 1]) == []


def test_with_nothing_sound_nothing_is_trained(made: Made, stores: Stores) -> None:
    """Every checkpoint has a bit flipped: an error, and the guard takes no step."""
    objects, _, _ = made
    spoilt = {
        key: flipped(data, len(data) - 1, 0) if key.endswith(".safetensors") else data
        for key, data in objects.items()
    }
    with guarded(stores(spoilt), small().values) as guard:
        with pytest.raises(CheckpointError, match="Training was not started"):
            guard.restore()
        with pytest.raises(Exception, match="mix of two states"):
            guard.step()


def test_a_chunk_that_only_a_newer_version_can_hold_is_not_gone_back_behind() -> None:
    """It may be good: the restore stops and says what reads it, and the older checkpoint is not touched."""
    head = header([("a", "uint8", (2**28,), 2**28)])
    size = len(head) + 2**28

    class Huge(FakeStore):
        """Says that it holds what no test should."""

        def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
            for info in super().list(prefix, timeout=timeout):
                yield replace(info, size=size) if "/000000020-" in info.key else info

    class Outline:
        poisoned = ""

        def targets(self, *what: Any) -> RestorePlan:
            return RestorePlan(
                {}, {"a": StateTensor("a", torch.empty(2**28, dtype=torch.uint8, device="meta"))}, ()
            )

    store = Huge()
    Save(step=10).write(store)
    entry = TensorEntry("a", "uint8", (2**28,), (Chunk((0,), (2**28,), 0, len(head), size, 0),))
    held = ObjectEntry("00000-of-00001/0000.safetensors", size, len(head), crc32(head))
    tree = {"a": {"$": "tensor", "name": "a"}}
    put_manifest(store, RankManifest("run", 20, 1, 1, 0, 1, objects=(held,), tensors=(entry,), state=tree))
    store.put("run/checkpoints/000000020-0001-0001/00000-of-00001/0000.safetensors", memoryview(b"x"))
    state: Any = Outline()
    with pytest.raises(UnsupportedFormatError, match="a has a chunk of 256 MiB"):
        restore(store, "run", state)
    assert "read_into" not in [verb for verb, _ in store.calls]
