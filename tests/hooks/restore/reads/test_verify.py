"""Every byte of a checkpoint is under some CRC, and a report says which are not as they were written."""

from __future__ import annotations

from dataclasses import replace

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.hooks.restore.reads.verify import verify
from tests.fakes.checkpoint import Save
from tests.fakes.commit import put_manifest
from tests.fakes.store import FakeStore


def found(store: FakeStore) -> WholeCheckpoint:
    whole = find_whole(store, "run")
    assert whole is not None
    return whole


def test_a_complete_checkpoint_has_no_damage() -> None:
    """And each byte was read once; progress ends at all of them."""
    store = FakeStore()
    Save().write(store)
    progress: list[tuple[int, int]] = []
    assert verify(store, found(store), progress=lambda done, total: progress.append((done, total))) == []
    size = sum(len(data) for key, data in store.objects.items() if key.endswith("safetensors"))
    assert progress[-1] == (size, size)


def test_a_flipped_bit_in_any_byte_is_found() -> None:
    """In a header as in a tensor: no byte of an object is outside all CRCs. Every 7th is tried."""
    store, save = FakeStore(), Save()
    save.write(store)
    whole = found(store)
    for key in [key for key in store.objects if key.endswith("safetensors")]:
        for at in range(0, len(store.objects[key]), 7):
            store.corrupt(key, at, 1 << at % 8)
            (damage,) = verify(store, whole)
            assert damage.key == key
            assert "CRC32 differs" in str(damage)
            assert damage.tensor or damage.offsets == ()
            store.corrupt(key, at, 1 << at % 8)
    assert verify(store, whole) == []


def test_the_damaged_tensor_is_named() -> None:
    """With the place in it."""
    store, save = FakeStore(), Save(target=1024)
    manifests = save.write(store)
    entry = next(entry for entry in manifests[1].tensors if entry.name == "model.embed.weight")
    chunk = entry.chunks[-1]
    key = manifests[1].object_key(chunk.object)
    store.corrupt(key, chunk.end - 1)
    (damage,) = verify(store, found(store))
    assert (damage.tensor, damage.offsets) == ("model.embed.weight", chunk.offsets)
    assert str(damage) == f"{key}: tensor 'model.embed.weight' at {list(chunk.offsets)}: CRC32 differs"


def test_an_object_that_vanished_or_shrank_is_damage_not_an_error() -> None:
    """The report goes on with the others."""
    store, save = FakeStore(), Save()
    manifests = save.write(store)
    whole = found(store)
    del store.objects[manifests[0].object_key(0)]
    key = manifests[1].object_key(0)
    store.objects[key] = store.objects[key][:-5]
    store.corrupt(manifests[1].object_key(1), 3)
    assert [damage.key for damage in verify(store, whole)] == [
        manifests[0].object_key(0), key, manifests[1].object_key(1),
    ]  # fmt: skip


def test_objects_of_an_earlier_checkpoint_are_read_too() -> None:
    """What a checkpoint refers to is a part of it."""
    store, base = FakeStore(), Save(step=10)
    manifests = base.write(store)
    Save(step=20, save=1, base=manifests).write(store)
    chunk = next(entry for entry in manifests[0].tensors if entry.name == "model.embed.weight").chunks[0]
    key = manifests[0].object_key(chunk.object)
    store.corrupt(key, chunk.start)
    assert [damage.key for damage in verify(store, found(store))] == [key]


def test_a_manifest_that_describes_its_objects_otherwise_is_found() -> None:
    """Each byte is the one that was written, and means something else: one damage for each such object."""
    store = FakeStore()
    (manifest,) = Save(world=1, target=2**20).write(store)
    entries = tuple(
        each._replace(dtype="int32") if each.dtype == "float32" else each for each in manifest.tensors
    )
    put_manifest(store, replace(manifest, tensors=entries))
    (damage,) = verify(store, found(store))
    assert str(damage).endswith("header: has a header that does not match the tensors in its manifest")
