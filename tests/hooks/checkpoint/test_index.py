"""The index: a restore of a large job reads one object where it read one for each rank, and is never the worse for it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole, whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import encode_manifest, open_file
from spotguard.hooks.checkpoint.format.keys import INDEX, MARKER, manifest_name
from spotguard.hooks.checkpoint.format.manifest import FORMAT, RankManifest
from spotguard.hooks.checkpoint.index import INDEXED, IndexBuilder, decode_index
from spotguard.providers.errors import CheckpointError, SpotguardError, StoreError
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Hurried
from tests.fakes.commit import put_index, put_manifest
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore

WORLD = INDEXED


def committed(store: FakeStore, save: Save) -> list[RankManifest]:
    """By the rank that comes last."""
    pytest.importorskip("torch")
    from spotguard.hooks.commit.cancel_scope import CancelScope
    from spotguard.hooks.save.shard_writer import ShardWriter
    from tests.hooks.commit.writes import commit_together

    *others, last = [save.write_objects(store, rank) for rank in range(save.world)]
    for manifest in others:
        put_manifest(store, manifest)
    clock = Hurried()
    with closing(ShardWriter(store, "run", last.rank, last.world)) as writer:
        assert commit_together(writer, last, CancelScope(clock, None), clock).marked
    return [*others, last]


def indexed(store: FakeStore, save: Save) -> list[RankManifest]:
    """As a commit leaves it, without its threads."""
    manifests = save.write(store)
    index = IndexBuilder()
    for manifest in reversed(manifests):
        data = encode_manifest(manifest)
        index.add(open_file(data, "k", "manifest"), len(data))
    put_index(store, "run", manifests[0].checkpoint, index)
    return manifests


def read(store: FakeStore) -> tuple[list[RankManifest], list[str]]:
    """What a restore finds, and the names of the objects that it read."""
    store.calls.clear()
    (whole,) = whole_checkpoints(store, "run", indexed=True)
    return [*whole.manifests], [key.rpartition("/")[2] for verb, key in store.calls if verb == "get"]


@pytest.mark.torch
def test_a_commit_of_many_ranks_puts_it_behind_the_marker() -> None:
    """Its rank has read all manifests; a commit of few ranks puts none."""
    store, save = FakeStore(), Save(world=WORLD)
    manifests = committed(store, save)
    puts = [key.removeprefix(save.prefix) for verb, key in store.calls if verb == "put"]
    assert puts[-3:] == [manifest_name(WORLD - 1, WORLD), MARKER, INDEX]
    assert read(store) == (manifests, [INDEX])
    assert sum(len(data) for key, data in store.objects.items() if key.endswith(INDEX)) < sum(
        len(encode_manifest(each)) for each in manifests
    )
    few = FakeStore()
    committed(few, Save(world=WORLD - 1))
    assert not any(key.endswith(INDEX) for key in few.objects)


@pytest.mark.torch
def test_a_store_that_refuses_it_loses_nothing() -> None:
    """The checkpoint is committed and marked, and a restore reads its manifests."""

    class Refusing(FakeStore):
        def put(self, key: str, data: memoryview, **more: Any) -> None:
            if key.endswith(INDEX):
                raise StoreError("no room")
            super().put(key, data, **more)

    store = Refusing()
    manifests = committed(store, Save(world=WORLD))
    assert read(store) == (manifests, [manifest_name(rank, WORLD) for rank in range(WORLD)])


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """The same index with other fields and a CRC that is right."""

    def apply(data: bytes) -> bytes:
        value = json.loads(data)["index"]
        change(value)
        body = json.dumps(value).encode()
        return b'{"crc32":%d,"index":' % zlib.crc32(body) + body + b"}\n"

    return apply


@pytest.mark.parametrize(
    "wrong",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"rank":3,', b'"rank":4,'),
        lambda data: b"",
        lambda data: data + b" " * 10**6,
        changed(lambda value: value.update(store_format=FORMAT + 1)),
        changed(lambda value: value["sizes"].pop()),
        changed(lambda value: value["manifests"].pop()),
        changed(lambda value: value["texts"].pop()),
        changed(lambda value: value.update(texts=7)),
        changed(lambda value: value["manifests"].append(3)),
        changed(lambda value: value["manifests"][0].update(store_format=FORMAT + 1)),
        changed(lambda value: value["manifests"][0].update(tensors=[3])),
        changed(lambda value: value["manifests"][1].update(rank=0)),
        changed(lambda value: value["manifests"][0]["tensors"][0].update(forms=-1)),
    ],
)
def test_one_that_is_not_right_is_passed_over(wrong: Callable[[bytes], bytes]) -> None:
    """Damaged, cut short, of another version, or of other manifests: those that are there are read, and nothing is said."""
    store, save = FakeStore(), Save(world=WORLD)
    manifests = indexed(store, save)
    assert read(store) == (manifests, [INDEX])
    store.objects[save.prefix + INDEX] = wrong(store.objects[save.prefix + INDEX])
    found, asked = read(store)
    assert found == manifests
    assert sorted(asked[-WORLD:]) == [
        manifest_name(rank, WORLD) for rank in range(WORLD)
    ]  # read beside each other


def test_one_of_a_manifest_that_was_put_again_is_passed_over() -> None:
    """By its size in the listing."""
    store, save = FakeStore(), Save(world=WORLD)
    manifests = indexed(store, save)
    longer = replace(manifests[2], environment={"put": "again"})
    put_manifest(store, longer)
    assert read(store)[0][2] == longer


def test_proofs_and_deletions_read_the_manifests_themselves() -> None:
    """An index that is right says nothing of what became of them. A prune takes it with the rest."""
    store = FakeStore()
    old, new = Save(world=WORLD, save=0), Save(world=WORLD, save=1)
    indexed(store, old)
    indexed(store, new)
    store.calls.clear()
    whole = find_whole(store, "run")
    assert whole is not None
    assert INDEX not in {key.rpartition("/")[2] for verb, key in store.calls if verb == "get"}
    prune(store, "run", keep=1)
    assert {key for key in store.objects if key.startswith(old.prefix)} == set()
    assert new.prefix + INDEX in store.objects


def test_the_key_is_named() -> None:
    """With the reason."""
    store, save = FakeStore(), Save(world=WORLD)
    indexed(store, save)
    with pytest.raises(CheckpointError, match="the/key: the index does not match the manifests in the store"):
        decode_index(store.objects[save.prefix + INDEX], "the/key", {0: 1})
    with pytest.raises(SpotguardError, match=r"the/key: .*truncated"):
        decode_index(b"", "the/key", {})
