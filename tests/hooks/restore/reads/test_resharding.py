"""Objects into tensors: every byte verified before it is copied in, neighbours in one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.format.coverage import Coverage, coverage
from spotguard.hooks.checkpoint.format.crc import crc32
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.format.safetensors_header import header
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES
from spotguard.hooks.restore.reads.ranges import GAP_BYTES, REQUEST_BYTES
from spotguard.hooks.restore.reads.resharding import fill, parts_of
from spotguard.hooks.restore.reads.resharding import read as read_leaves
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.hooks.state.device.host_buffer import box
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CheckpointError, CorruptError, NotFoundError, UnavailableError
from tests.fakes.clock import Impatient
from tests.fakes.cut import Cut, Rule, columns, grid, rows
from tests.fakes.reads import Reads
from tests.fakes.store import FakeStore, Fault
from tests.hooks.commit.writes import writer_of

pytestmark = pytest.mark.torch


def written(store: FakeStore, **tensors: torch.Tensor) -> Coverage:
    """A checkpoint of these tensors, and what its manifest says."""
    state_tensors = [StateTensor(name, tensor) for name, tensor in tensors.items()]
    with writer_of(store, OBJECT_BYTES) as writer:
        result = writer.write(state_tensors, CheckpointName(1, 0, 0), CancelScope(SystemClock()))
    manifest = RankManifest("run", 0, 1, 0, 0, 1, objects=result.objects, tensors=result.tensors)
    store.calls.clear()
    return coverage([manifest])


def read(store: FakeStore | RetryingStore, whole: Coverage, into: Mapping[str, torch.Tensor]) -> int:
    """Into whole tensors."""
    return read_leaves(store, whole, {name: StateTensor(name, tensor) for name, tensor in into.items()})


def test_tensors_are_read_into_any_layout() -> None:
    """Transposed, strided and channels-last targets get the same values; nobody else's memory is touched."""
    store = FakeStore()
    tensors = {
        "big": torch.rand(OBJECT_BYTES // 4 // 64 + 5, 64),
        "turned": torch.rand(7, 5).mT,
        "conv": torch.rand(2, 3, 4, 5),
        "odd": torch.randint(0, 255, (3,), dtype=torch.uint8),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.empty(3, 0),
    }
    whole = written(store, **tensors)
    around = torch.zeros(14, 10)
    into = {
        "big": torch.zeros_like(tensors["big"]),
        "turned": around[4:14:2, 1:8],
        "conv": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "odd": torch.zeros(3, dtype=torch.uint8),
        "scalar": torch.tensor(0.0, dtype=torch.float64),
        "empty": torch.empty(3, 0),
    }
    nbytes = read(store, whole, into)
    assert all(torch.equal(into[name], tensors[name]) for name in tensors)
    assert nbytes == sum(tensor.nbytes for tensor in tensors.values())
    assert int((around != 0).sum()) == 35


def test_neighbours_come_in_one_request() -> None:
    """A request has latency: an object whose every tensor is wanted is read once."""
    store = FakeStore()
    whole = written(store, **{f"t{n}": torch.rand(10) for n in range(50)})
    read(store, whole, {f"t{n}": torch.zeros(10) for n in range(50)})
    assert [verb for verb, _ in store.calls] == ["read_into"]


def test_only_what_is_wanted_is_read() -> None:
    """A small gap between two of them in the same request, a large one in none."""
    store = FakeStore()
    tensors = {f"t{n}": torch.rand(10) for n in range(5)}
    whole = written(store, **tensors)
    into = {"t1": torch.zeros(10), "t3": torch.zeros(10)}
    assert read(store, whole, into) == 80
    assert all(torch.equal(into[name], tensors[name]) for name in into)
    assert len(store.calls) == 1
    store = FakeStore()
    whole = written(store, **{f"t{n}": torch.rand(GAP_BYTES) for n in range(3)})
    chunks = sorted(whole.tensors.values(), key=lambda tensor: tensor.chunks[0][1].start)
    assert read(store, whole, {chunks[n].name: torch.zeros(GAP_BYTES) for n in (0, 2)}) == 8 * GAP_BYTES
    assert len(store.calls) == 2


def test_a_large_chunk_comes_in_parts_into_any_layout() -> None:
    """Verified as a whole before the first of them is copied in."""
    store = FakeStore()
    store.parallel = 1  # so that the state is in large objects
    tensors = {
        "tall": torch.rand(5000, 1100),
        "wide": torch.rand(2, 2, 2**21 + 3),
        "flat": torch.rand(5 * 2**20),
    }
    whole = written(store, **tensors)
    into = {
        "tall": torch.zeros(1100, 5000).T,
        "wide": torch.zeros(2, 2, 2**22 + 6)[..., ::2],
        "flat": torch.zeros(5 * 2**20),
    }
    read(store, whole, into)
    assert all(torch.equal(into[name], tensors[name]) for name in tensors)
    assert len(store.calls) > 8
    for name in tensors:
        into[name].zero_()
    ((_, chunk),) = whole.tensors["tall"].chunks
    key = whole.manifests[0].object_key(chunk.object)
    store.corrupt(key, chunk.end - 1)
    with pytest.raises(CheckpointError, match="tall"):
        read(store, whole, {"tall": into["tall"]})
    assert not into["tall"].any()


def test_damaged_bytes_reach_no_tensor() -> None:
    """Checked before anything of the request is copied in; the error names object, bytes and tensor."""
    store = FakeStore()
    tensors = {f"t{n}": torch.rand(10) for n in range(4)}
    whole = written(store, **tensors)
    (key,) = store.objects
    store.corrupt(key, len(store.objects[key]) - 1)
    into = {name: torch.zeros(10) for name in tensors}
    with pytest.raises(CheckpointError, match=r"0000\.safetensors: bytes .* are damaged"):
        read(store, whole, into)
    assert all(not tensor.any() for tensor in into.values())


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (lambda store, key: store.objects.pop(key), NotFoundError),
        (lambda store, key: store.objects.__setitem__(key, store.objects[key][:-1]), CorruptError),
        (lambda store, key: store.faults.append(Fault(0, verbs=("read_into",))), UnavailableError),
    ],
    ids=["gone", "shorter", "failing"],
)
def test_errors_of_the_store_come_out_unchanged(loss: object, error: type[Exception]) -> None:
    """As it is: whether to take an older checkpoint is decided elsewhere."""
    store = FakeStore()
    whole = written(store, a=torch.rand(10))
    (key,) = store.objects
    assert callable(loss)
    loss(store, key)
    with pytest.raises(error):
        read(store, whole, {"a": torch.zeros(10)})


@pytest.mark.parametrize("every", [2, 5])
def test_failures_for_now_cost_what_was_asked_and_no_more(every: int) -> None:
    """Objects of full size, some of their chunks in parts: what was read stays read."""
    store = Reads()
    tensors = {f"t{n}": torch.rand(OBJECT_BYTES // 4 // (1, 2, 3, 100)[n]) for n in range(4)}
    whole = written(store, **tensors)
    store.faults = [Fault(at, verbs=("read_into",)) for at in range(1, 100, every)]
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    nbytes = read(RetryingStore(store, Impatient(), "so"), whole, into)
    assert all(torch.equal(into[name], tensors[name]) for name in tensors)
    failed = sum(at < len(store.calls) for at in range(1, 100, every))
    assert failed > 1
    assert nbytes <= store.nbytes <= nbytes + failed * REQUEST_BYTES


def test_a_chunk_of_another_version_is_refused_before_any_request() -> None:
    """A chunk of another version's: no damage, so nothing older is taken for it."""
    store = FakeStore()
    head = header([("a", "uint8", (2**28,), 2**28)])
    end = len(head) + 2**28
    entry = TensorEntry("a", "uint8", (2**28,), (Chunk((0,), (2**28,), 0, len(head), end, 0),))
    object_ = ObjectEntry("00000-of-00001/0000.safetensors", end, len(head), crc32(head))
    whole = coverage([RankManifest("run", 0, 1, 0, 0, 1, objects=(object_,), tensors=(entry,))])
    with pytest.raises(UnsupportedFormatError, match="a has a chunk of 256 MiB"):
        read(store, whole, {"a": torch.empty(2**28, dtype=torch.uint8, device="meta")})
    assert store.calls == []


def test_a_chunk_for_two_memories_is_read_once() -> None:
    """Also one that takes several requests: no byte is asked for twice, and both memories have all of it."""
    store = Reads()
    tensor = torch.rand(REQUEST_BYTES // 4 + 1000)
    whole = written(store, a=tensor)
    both = [torch.zeros_like(tensor), torch.zeros_like(tensor)]
    parts = [part for into in both for part in parts_of(whole, whole.tensors["a"], StateTensor("a", into))]
    assert fill(store, parts) == tensor.nbytes
    assert len(store.reads) > 1
    assert store.nbytes == tensor.nbytes
    assert all(torch.equal(into, tensor) for into in both)


def test_a_rounded_moment_comes_back_in_its_own_dtype() -> None:
    """Bytes stored in another dtype than the tensor's are widened on the way in."""
    store = FakeStore()
    exact = torch.rand(8).to(torch.bfloat16)
    whole = written(store, moment=exact)
    manifest = whole.manifests[0]
    entry = manifest.tensors[0]._replace(dtype="float32", stored="bfloat16")
    whole = coverage([replace(manifest, tensors=(entry,))])
    into = torch.zeros(8)
    read(store, whole, {"moment": into})
    assert torch.equal(into, exact.float())


def test_a_large_rounded_moment_comes_back_in_parts() -> None:
    """They end between its elements as they are stored."""
    store = FakeStore()
    store.parallel = 1  # so that the state is in large objects
    exact = torch.rand(5 * 2**20 + 1).to(torch.bfloat16)
    whole = written(store, moment=exact)
    entry = whole.manifests[0].tensors[0]._replace(dtype="float32", stored="bfloat16")
    whole = coverage([replace(whole.manifests[0], tensors=(entry,))])
    into = torch.zeros(exact.numel())
    read(store, whole, {"moment": into})
    assert torch.equal(into, exact.float())
    assert len(store.calls) == 2


TENSORS = {
    "tall": torch.rand(13, 5),
    "cube": torch.rand(4, 6, 8),
    "flat": torch.rand(37).to(torch.bfloat16),
    "bytes": torch.randint(0, 255, (9, 3), dtype=torch.uint8),
    "few": torch.rand(2, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.rand(0, 3),
}


def shards(rule: Rule, rank: int, world: int, tensors: Mapping[str, torch.Tensor]) -> dict[str, StateTensor]:
    """Memory for what a rank of another job wants."""
    found = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if (part := rule(name, shape, rank, world)) is not None:
            memory = torch.full(part.sizes, 77, dtype=tensor.dtype)
            found[name] = StateTensor(name, memory, offsets=part.offsets, shape=shape)
    return found


@pytest.mark.parametrize(
    ("written", "wanted", "world"),
    [
        (rows, rows, 3),
        (rows, columns, 2),
        (columns, rows, 3),
        (grid, columns, 3),
        (rows, grid, 6),
        (grid, rows, 1),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_tensors_of_four_ranks_are_read_by_any_number_of_ranks(
    written: Rule, wanted: Rule, world: int
) -> None:
    """Uneven shares, more ranks than rows, no dimension, no element: each rank gets its box, bit for bit."""
    store = FakeStore()
    whole = Cut(TENSORS, written).write(store)
    for rank in range(world):
        into = shards(wanted, rank, world, TENSORS)
        read_leaves(store, whole, into)
        for name, state_tensor in into.items():
            assert state_tensor.offsets is not None
            part = box(TENSORS[name], state_tensor.offsets, tuple(state_tensor.tensor.shape))
            assert torch.equal(state_tensor.tensor, part), (name, rank)


def test_parts_of_a_large_chunk_go_into_what_meets_them() -> None:
    """A chunk that takes several requests, into columns of it, turned, and beside memory that is somebody else's."""
    store = FakeStore()
    tensors = {"tall": torch.rand(5000, 1100) + 1, "wide": torch.rand(2, 2, 2**21 + 3)}
    whole = Cut(tensors, world=1).write(store)
    around = torch.zeros(300, 4000)
    state_tensors = {
        "tall": StateTensor("tall", around[100:200, 500:3500].T, offsets=(1500, 900), shape=(5000, 1100)),
        "wide": StateTensor("wide", torch.zeros(2, 1, 2**20), offsets=(0, 1, 2**20), shape=(2, 2, 2**21 + 3)),
    }
    read_leaves(store, whole, state_tensors)
    assert len([verb for verb, _ in store.calls if verb == "read_into"]) > 8
    assert torch.equal(around[100:200, 500:3500].T, tensors["tall"][1500:4500, 900:1000])
    assert torch.equal(state_tensors["wide"].tensor, tensors["wide"][:, 1:2, 2**20 : 2**21])
    assert around.count_nonzero() == 300_000


def test_no_chunk_is_read_that_a_rank_has_no_element_of() -> None:
    """Requests and bytes counted: two of eight ranks' files, and of those only what holds the rows."""
    store = Reads()
    tensors = {"a": torch.rand(800, 1024), "b": torch.rand(800, 1024)}
    whole = Cut(tensors, world=8).write(store)
    memory = torch.zeros(120, 1024)
    nbytes = read_leaves(store, whole, {"a": StateTensor("a", memory, offsets=(90, 0), shape=(800, 1024))})
    assert torch.equal(memory, tensors["a"][90:210])
    assert nbytes == store.nbytes == 3 * 100 * 1024 * 4
    assert sorted(key.rpartition("/")[0][-14:] for key, _, _ in store.reads) == [
        f"{rank:05d}-of-00008" for rank in range(3)
    ]


def test_a_damaged_chunk_gives_nothing_of_itself_to_a_part() -> None:
    """The damage lies outside of what is wanted: nobody can tell, for the checksum is of the whole chunk."""
    store = FakeStore()
    whole = Cut({"a": torch.rand(40, 8)}, world=2).write(store)
    ((_, first), _) = whole.tensors["a"].chunks
    store.corrupt(whole.manifests[0].object_key(first.object), first.end - 1)
    memory = torch.zeros(5, 8)
    with pytest.raises(CheckpointError, match=r"\(a\) are damaged"):
        read_leaves(store, whole, {"a": StateTensor("a", memory, offsets=(0, 0), shape=(40, 8))})
    assert not memory.any()


def test_memory_of_another_shape_is_refused_before_anything_is_asked() -> None:
    store = FakeStore()
    whole = Cut({"a": torch.rand(4, 4)}).write(store)
    store.calls.clear()
    for state_tensor in (
        StateTensor("a", torch.zeros(4, 3)),
        StateTensor("a", torch.zeros(4, 2), offsets=(0, 3), shape=(4, 4)),
    ):
        with pytest.raises((ValueError, CheckpointError)):
            read_leaves(store, whole, {"a": state_tensor})
    assert store.calls == []


def test_a_rounded_moment_is_widened_into_a_part() -> None:
    """Along rows and along columns of it."""
    store = FakeStore()
    exact = torch.rand(12, 6).to(torch.bfloat16)
    whole = Cut({"moment": exact}, world=2).write(store)
    rounded = [
        replace(manifest, tensors=(manifest.tensors[0]._replace(dtype="float32", stored="bfloat16"),))
        for manifest in whole.manifests
    ]
    for offsets, sizes in (((4, 0), (4, 6)), ((0, 1), (12, 2))):
        into = torch.zeros(sizes)
        read_leaves(
            store, coverage(rounded), {"moment": StateTensor("moment", into, offsets=offsets, shape=(12, 6))}
        )
        assert torch.equal(into, box(exact, offsets, sizes).float())
