"""The plan tiles every tensor exactly, fits its objects, and is the same everywhere; and anybody can open its objects."""

from __future__ import annotations

import json
import random
import struct
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.dtypes import ITEMSIZE
from spotguard.hooks.checkpoint.format.safetensors_header import header, label
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES, PlannedObject, PlannedTensor, plan
from spotguard.providers.errors import UsageError
from tests.tiers import examples

DTYPES = ["float32", "float64", "bfloat16", "int8", "bool", "complex128", "float8_e8m0fnu"]

items = st.lists(
    st.tuples(
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 9) | st.sampled_from([40, 600]), max_size=4)
        .map(tuple)
        .filter(lambda s: prod(s) < 4000),
    ),
    max_size=8,
).map(lambda drawn: [PlannedTensor(f"t{i}.weight", dtype, sizes) for i, (dtype, sizes) in enumerate(drawn)])
targets = st.sampled_from([512, 600, 1024, 4096, 2**20])


def elements(corner: tuple[int, ...], sizes: tuple[int, ...]) -> set[tuple[int, ...]]:
    return set(product(*(range(at, at + size) for at, size in zip(corner, sizes, strict=True))))


def flat(index: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    position = 0
    for at, size in zip(index, sizes, strict=True):
        position = position * size + at
    return position


@settings(deadline=None, max_examples=examples(60))
@given(items, targets)
def test_pieces_tile_each_tensor(tensors: list[PlannedTensor], target: int) -> None:
    """Each element is in one piece, as part of a box and at its place in the item's row-major run."""
    pieces = [piece for planned in plan(tensors, target) for piece in planned.pieces]
    for index, item in enumerate(tensors):
        covered: set[tuple[int, ...]] = set()
        for piece in (piece for piece in pieces if piece.item == index):
            box = elements(piece.local, piece.sizes)
            assert not covered & box
            covered |= box
            assert sorted(flat(at, item.sizes) for at in box) == list(
                range(piece.first, piece.first + piece.count)
            )
            assert piece.end - piece.start == piece.count * ITEMSIZE[item.dtype]
            assert piece.offsets == piece.local
        assert len(covered) == prod(item.sizes)


@settings(deadline=None, max_examples=examples(60))
@given(items, targets)
def test_objects_fit_and_are_dense(tensors: list[PlannedTensor], target: int) -> None:
    """At most `target` bytes with the header, pieces back to back and aligned, none empty."""
    for planned in plan(tensors, target):
        assert planned.size <= target
        position = len(planned.header)
        assert position % 8 == 0
        assert planned.pieces
        for piece in planned.pieces:
            assert piece.start == position
            assert piece.start % min(8, ITEMSIZE[tensors[piece.item].dtype]) == 0
            position = piece.end
        assert position == planned.size


@given(items, targets, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=examples(30))
def test_the_order_of_items_does_not_matter(
    tensors: list[PlannedTensor], target: int, chance: random.Random
) -> None:
    """Ranks that list their tensors otherwise plan the same objects."""

    def named(
        order: list[PlannedTensor], planned: tuple[PlannedObject, ...]
    ) -> list[tuple[bytes, list[str]]]:
        return [(each.header, [order[piece.item].name for piece in each.pieces]) for each in planned]

    shuffled = chance.sample(tensors, len(tensors))
    assert named(tensors, plan(tensors, target)) == named(shuffled, plan(shuffled, target))


@settings(deadline=None, max_examples=examples(30))
@given(items, targets)
def test_any_tool_opens_an_object(tensors: list[PlannedTensor], target: int) -> None:
    """The safetensors library reads each one, and finds every piece with its size."""
    safetensors = pytest.importorskip("safetensors")
    for planned in plan(tensors, target):
        data = planned.header + bytes(planned.size - len(planned.header))
        found = dict(safetensors.deserialize(data))
        assert sum(len(value["data"]) for value in found.values()) == planned.size - len(planned.header)
        assert len(found) == len(planned.pieces)


def test_a_shard_says_where_it_lies() -> None:
    """Offsets are the global ones, elements are counted in the shard."""
    shard = PlannedTensor("w", "float32", (4, 100), offsets=(8, 0), shape=(16, 100))
    pieces = [piece for planned in plan([shard], 1024) for piece in planned.pieces]
    assert [(piece.offsets, piece.sizes, piece.first) for piece in sorted(pieces, key=lambda p: p.first)] == [
        ((8, 0), (2, 100), 0),
        ((10, 0), (2, 100), 200),
    ]


def test_large_first_and_small_ones_packed() -> None:
    """Crumbs share an object that is on its way at once; of the rest, what takes longest starts first."""
    tensors = [PlannedTensor(f"b{i:03}", "float32", (8,)) for i in range(50)] + [
        PlannedTensor("w", "float32", (1000, 1000))
    ]
    planned = plan(tensors, 2**20)
    assert len(planned[0].pieces) > 30
    assert [len(each.pieces) for each in planned[1:]] == [1] * 3


def test_the_first_object_of_many_small_ones_is_small() -> None:
    """Its bytes leave while the others are put together; what fits one object of a moment's work is not split."""
    many = [PlannedTensor(f"p{i:05}", "float32", (64,)) for i in range(10_000)]
    planned = plan(many)
    assert len(planned[0].pieces) <= 256
    assert planned[0].size <= 2**20
    assert sum(len(each.pieces) for each in planned) == len(many)
    assert len(plan(many[:256])) == 1
    assert len(plan([PlannedTensor("w", "float32", (2**20,))] * 3)) == 1


def test_a_row_larger_than_an_object_is_split_further() -> None:
    """Along the next dimension, and so on; each piece is still a box."""
    sizes = [
        piece.sizes
        for planned in plan([PlannedTensor("w", "float64", (2, 3, 200))], 1024)
        for piece in planned.pieces
    ]
    assert {size[:2] for size in sizes} == {(1, 1)}
    assert sum(size[2] for size in sizes) == 1200


def test_nothing_to_write_needs_no_object() -> None:
    """Empty tensors are in the manifest alone."""
    assert plan([]) == ()
    assert plan([PlannedTensor("e", "float32", (0, 5)), PlannedTensor("f", "int8", (3, 0))]) == ()


def test_a_scalar_is_a_box_of_no_dimensions() -> None:
    """As a step counter is."""
    (planned,) = plan([PlannedTensor("step", "float32", ())])
    assert [(piece.sizes, piece.offsets, piece.count) for piece in planned.pieces] == [((), (), 1)]


def test_a_target_too_small_is_refused() -> None:
    """With the way out, and before anything is written."""
    with pytest.raises(UsageError, match="objects of 100 bytes cannot hold an element of 'w'"):
        plan([PlannedTensor("w", "float32", (2,))], 100)


def test_names_that_safetensors_keeps_for_itself() -> None:
    """And names that look like another tensor's part: the manifest says what is what, the file stays readable."""
    safetensors = pytest.importorskip("safetensors")
    tensors = [
        PlannedTensor("__metadata__", "int8", (2,)),
        PlannedTensor("w@0", "int8", (600,)),
        PlannedTensor("w", "int8", (900,)),
        PlannedTensor('"ä\n', "int8", (1,)),
    ]
    for planned in plan(tensors, 1024):
        safetensors.deserialize(planned.header + bytes(planned.size - len(planned.header)))
    assert label("w", (4, 2), (2, 0), (2, 2)) == "w@2,0"


def test_a_header_is_what_the_format_says() -> None:
    """A length, JSON, spaces up to a multiple of eight; offsets count from its end."""
    data = header([("a", "float32", (2, 3), 24), ("b", "complex64", (), 8)])
    (length,) = struct.unpack("<Q", data[:8])
    assert len(data) == 8 + length
    assert json.loads(data[8:]) == {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [24, 32]},
    }


def test_a_plan_of_a_large_model_is_quick_to_make() -> None:
    """7B parameters with Adam's moments: some 870 tensors of 84 GB; no object above the target."""
    shapes = [(32000, 4096), (4096, 4096), (11008, 4096), (4096,)]
    tensors = [
        PlannedTensor(f"l{i}.{kind}", "float32", shapes[i % 4])
        for i in range(290)
        for kind in ("w", "m", "v")
    ]
    planned = plan(tensors)
    assert max(each.size for each in planned) <= OBJECT_BYTES
    used = sum(each.size for each in planned)
    assert used / (len(planned) * OBJECT_BYTES) > 0.9
