"""Faults of one rank among four: the set is never marked, and where a marker and an index say that it is whole, nothing
believes them. A restore takes the older checkpoint, and nothing that is older goes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import encode_manifest, open_file
from spotguard.hooks.checkpoint.format.keys import INDEX, MARKER, checkpoint_prefix, manifest_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.index import IndexBuilder
from spotguard.hooks.checkpoint.retention import plan_pruning
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.publish import IncompleteError
from spotguard.hooks.restore.reads.verify import verify
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.providers.errors import CheckpointError
from tests.cases import cases
from tests.fakes.checkpoint import Save
from tests.fakes.clock import Hurried
from tests.fakes.commit import put_index, put_manifest, put_marker
from tests.fakes.pruned import prune
from tests.fakes.store import FakeStore
from tests.hooks.commit.writes import commit_together

pytestmark = pytest.mark.torch

WORLD = 4
OLD, NEW = Save(step=10, save=0, world=WORLD), Save(step=20, save=1, world=WORLD)
#: A tensor that every rank writes its rows of: sixteen each.
ROWS = "model.embed.weight"
#: A tensor that one rank writes whole.
ONE = "optimizer.0.step"


@dataclass
class Planted:
    """The manifests of all ranks as they are put, and what lies under their names if that is something else."""

    manifests: list[RankManifest]
    files: dict[int, bytes | None]

    def tensor(self, rank: int, name: str = ROWS) -> TensorEntry:
        return next(entry for entry in self.manifests[rank].tensors if entry.name == name)

    def put_tensor(self, rank: int, entry: TensorEntry | None, name: str = ROWS) -> None:
        """Have a rank say this of a tensor; None: it does not list the tensor."""
        tensors = [each for each in self.manifests[rank].tensors if each.name != name]
        self.change(rank, tensors=(*tensors, *([entry] if entry is not None else [])))

    def put_chunks(self, rank: int, *chunks: Chunk, name: str = ROWS) -> None:
        self.put_tensor(rank, self.tensor(rank, name)._replace(chunks=chunks), name)

    def change(self, rank: int, **fields: object) -> None:
        self.manifests[rank] = replace(self.manifests[rank], **fields)  # type: ignore[arg-type]

    def data(self, rank: int) -> bytes:
        return encode_manifest(self.manifests[rank])


def rows(first: int, count: int, like: Chunk) -> Chunk:
    """A chunk of these rows, whose bytes lie where those of another do."""
    return like._replace(offsets=(first, 0), sizes=(count, 16), end=like.start + count * 16 * 4)


def chunk(planted: Planted, rank: int, name: str = ROWS) -> Chunk:
    (only,) = planted.tensor(rank, name).chunks
    return only


def writer_of(planted: Planted, name: str) -> int:
    """The one rank that writes it."""
    return next(rank for rank in range(WORLD) if planted.tensor(rank, name).chunks)


def replica(planted: Planted, crc32: int, name: str) -> None:
    """The next rank writes the same tensor too, with bytes of this checksum."""
    rank = writer_of(planted, name)
    other = (rank + 1) % WORLD
    theirs = chunk(planted, rank, name)
    size = theirs.end - theirs.start
    own = next(
        c for entry in planted.manifests[other].tensors for c in entry.chunks if c.end - c.start >= size
    )
    planted.put_chunks(
        other,
        theirs._replace(object=own.object, start=own.start, end=own.start + size, crc32=crc32),
        name=name,
    )


def born(planted: Planted, name: str, ranks: int) -> None:
    """Only so many ranks have a tensor that the others do not know of."""
    for rank in range(ranks):
        entry = planted.tensor(rank)._replace(name=name)
        planted.change(rank, tensors=(*planted.manifests[rank].tensors, entry))


def dead(planted: Planted, *ranks: int) -> None:
    for rank in ranks:
        planted.files[rank] = None


FAULTS: dict[str, Callable[[Planted], None]] = {
    # Shards.
    "the first rows are missing": lambda p: p.put_chunks(0),
    "rows in the middle are missing": lambda p: p.put_chunks(2),
    "the last rows are missing": lambda p: p.put_chunks(3),
    "one row between two ranks is missing": lambda p: p.put_chunks(1, rows(16, 15, chunk(p, 1))),
    "one row is there twice": lambda p: p.put_chunks(1, rows(15, 16, chunk(p, 1))),
    "a rank writes another rank's rows": lambda p: p.put_chunks(1, rows(0, 16, chunk(p, 1))),
    "a shard is there twice, with other bytes": lambda p: p.put_chunks(
        1, chunk(p, 1), rows(0, 16, chunk(p, 1))
    ),
    "two ranks have exchanged a column": lambda p: p.put_chunks(
        1, chunk(p, 1)._replace(sizes=(16, 15), end=chunk(p, 1).start + 16 * 15 * 4)
    ),
    "a replica differs": lambda p: replica(p, 1, ONE),
    "a replica of rows differs": lambda p: replica(p, 1, "model.odd"),
    "the only copy is nobody's": lambda p: p.put_chunks(writer_of(p, ONE), name=ONE),
    "rows beyond the tensor": lambda p: p.put_chunks(3, rows(60, 16, chunk(p, 3))),
    "bytes beyond the object": lambda p: p.put_chunks(0, chunk(p, 0)._replace(start=10**6, end=10**6 + 1024)),
    "an object that is not the rank's": lambda p: p.put_chunks(0, chunk(p, 0)._replace(object=99)),
    # What a tensor is.
    "another shape": lambda p: p.put_tensor(2, p.tensor(2)._replace(shape=(65, 16))),
    "another dtype": lambda p: p.put_tensor(2, p.tensor(2)._replace(dtype="int32")),
    "moments rounded on one rank": lambda p: p.put_tensor(
        2,
        p.tensor(2)._replace(
            stored="bfloat16", chunks=(chunk(p, 2)._replace(end=chunk(p, 2).start + 16 * 16 * 2),)
        ),
    ),
    "another name": lambda p: p.put_tensor(2, p.tensor(2)._replace(name="model.embed.bias"), ROWS),
    "a group that was added on one rank": lambda p: born(p, "optimizer.1.exp_avg", 1),
    "moments born on half of the ranks": lambda p: born(p, "optimizer.0.exp_avg_sq", 2),
    "a rank that holds nothing": lambda p: p.change(2, tensors=()),
    # Whose manifest it is.
    "a rank died before the decision": lambda p: dead(p, 1),
    "two ranks died after it": lambda p: dead(p, 0, 2),
    "a restart in place, with the old nonce": lambda p: p.change(1, incarnation="before"),
    "the manifest of another step": lambda p: p.change(1, step=19),
    "the manifest of another attempt": lambda p: p.change(1, attempt=7),
    "the manifest of a promoted background save": lambda p: p.change(1, save=0, kind="background"),
    "the manifest of another run": lambda p: p.change(1, run_id="other"),
    "the manifest of a larger job": lambda p: p.change(1, world=5),
    "another rank's manifest": lambda p: p.files.update({1: p.data(2)}),
    "a lower level on one rank": lambda p: p.change(1, level="weights"),
    "a rank that some take for dead": lambda p: p.change(1, level="partial-extras", missing=(3,)),
    # Its bytes.
    "an empty manifest": lambda p: p.files.update({1: b""}),
    "half a manifest": lambda p: p.files.update({1: p.data(1)[:400]}),
    "a bit of a manifest": lambda p: p.files.update({1: p.data(1).replace(b'"step":20', b'"step":21')}),
}


def planted(fault: Callable[[Planted], None], *, forged: bool) -> FakeStore:
    """A store with an older whole checkpoint, and a newer one whose last rank comes now.

    Args:
        forged: a marker and an index say that the newer one is whole.
    """
    store = FakeStore()
    OLD.write(store)
    it = Planted([NEW.write_objects(store, rank) for rank in range(WORLD)], {})
    sound = [*it.manifests]
    fault(it)
    assert it.manifests != sound or it.files
    files = {rank: it.files.get(rank, it.data(rank)) for rank in range(WORLD)}
    for rank, data in files.items():
        if data is not None and (rank < WORLD - 1 or forged):
            store.put(NEW.prefix + manifest_name(rank, WORLD), memoryview(data))
    clock = Hurried()
    if forged:
        put_marker(store, sound, created=2.0)
        if not it.files:
            _put_index(store, it.manifests)
    else:
        with (
            closing(ShardWriter(store, "run", WORLD - 1, WORLD)) as writer,
            pytest.raises((CheckpointError, IncompleteError)),
        ):
            commit_together(writer, it.manifests[-1], CancelScope(clock, 20.0), clock)
    return store


def _put_index(store: FakeStore, manifests: list[RankManifest]) -> None:
    index = IndexBuilder()
    for manifest in manifests:
        data = encode_manifest(manifest)
        index.add(open_file(data, "", "manifest"), len(data))
    put_index(store, "run", NEW.name, index)


def newest(store: FakeStore) -> object:
    """What a restore takes, by the index if it is there."""
    whole = next(whole_checkpoints(store, "run", indexed=True))
    assert verify(store, whole) == []
    return whole.name


@cases("fault", FAULTS)
def test_it_is_not_marked(fault: str) -> None:
    """The last rank reads every manifest and merges them."""
    store = planted(FAULTS[fault], forged=False)
    assert NEW.prefix + MARKER not in store.objects
    assert NEW.prefix + INDEX not in store.objects
    assert newest(store) == OLD.name
    assert prune(store, "run", keep=1) == []


@cases("fault", FAULTS)
def test_a_marker_and_an_index_change_nothing(fault: str) -> None:
    """Nothing older goes: the checkpoint that was merged and held against the listing is the older one."""
    store = planted(FAULTS[fault], forged=True)
    assert newest(store) == OLD.name
    pruning = plan_pruning(store, "run", keep=1)
    assert pruning.checked == OLD.name
    assert [*pruning.steps()] == []
    before = dict(store.objects)
    assert prune(store, "run", keep=1) == []
    assert store.objects == before


@pytest.mark.parametrize("gone", ["it", "a byte of it"])
def test_an_object_that_went_after_the_commit_is_trusted_by_nobody(gone: str) -> None:
    """A committer does not list: whoever restores, or removes what is older, does."""
    store = FakeStore()
    OLD.write(store)
    NEW.write(store)
    key = next(key for key in store.objects if key.startswith(NEW.prefix) and key.endswith(".safetensors"))
    data = store.objects.pop(key)
    if gone != "it":
        store.objects[key] = data[:-1]
    assert newest(store) == OLD.name
    assert plan_pruning(store, "run", keep=1).checked == OLD.name
    assert prune(store, "run", keep=1) == []


def test_the_sound_set_is_marked_and_the_older_one_goes() -> None:
    """Else the faults would prove nothing."""
    store = FakeStore()
    OLD.write(store)
    *others, last = [NEW.write_objects(store, rank) for rank in range(WORLD)]
    for manifest in others:
        put_manifest(store, manifest)
    clock = Hurried()
    with closing(ShardWriter(store, "run", last.rank, WORLD)) as writer:
        assert commit_together(writer, last, CancelScope(clock, 20.0), clock).marked
    assert newest(store) == NEW.name
    assert plan_pruning(store, "run", keep=1).checked == NEW.name
    assert prune(store, "run", keep=1) == [OLD.name]
    assert not any(key.startswith(checkpoint_prefix("run", OLD.name)) for key in store.objects)
