"""What makes manifests a whole: all ranks, one save, and boxes that tile."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.coverage import coverage
from spotguard.hooks.checkpoint.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry
from spotguard.providers.errors import CheckpointError
from tests.tiers import examples

OBJECT = ObjectEntry("00000-of-00001/0000.safetensors", 10**6, 8, 0)
Box = tuple[tuple[int, ...], tuple[int, ...]]


def manifest(rank: int = 0, world: int = 1, boxes: list[Box] | None = None, **fields: object) -> RankManifest:
    """One rank's manifest with one int8 tensor "w" of these boxes."""
    shape = fields.pop("shape", (4, 6))
    crc = fields.pop("crc32", 5)
    chunks = tuple(Chunk(offsets, sizes, 0, 8, 9, crc) for offsets, sizes in boxes or [])  # type: ignore[arg-type]
    tensor = TensorEntry("w", str(fields.pop("dtype", "int8")), shape, chunks)  # type: ignore[arg-type]
    base = RankManifest("run", 10, 1, 0, rank, world, (OBJECT,), (tensor,))
    return replace(base, **fields)  # type: ignore[arg-type]


def whole(*boxes: Box, shape: tuple[int, ...] = (4, 6)) -> None:
    coverage([manifest(boxes=list(boxes), shape=shape)])


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (4, 6))],
        [((0, 0), (2, 6)), ((2, 0), (2, 6))],
        [((0, 3), (4, 3)), ((0, 0), (4, 3))],
        [((0, 0), (2, 3)), ((0, 3), (2, 3)), ((2, 0), (2, 2)), ((2, 2), (2, 4))],
        # A pinwheel: no straight cut divides it.
        [((0, 0), (1, 4)), ((0, 4), (3, 2)), ((3, 2), (1, 4)), ((1, 0), (3, 2)), ((1, 2), (2, 2))],
        [((0, 0), (4, 6)), ((0, 0), (4, 6))],
        [((0, 0), (4, 6)), ((2, 2), (0, 3))],
    ],
)
def test_boxes_that_tile_are_whole(boxes: list[Box]) -> None:
    """Rows, columns, meshes, pinwheels; replicas and empty boxes beside them."""
    for order in (boxes, boxes[::-1]):
        whole(*order)


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([], "24 of 24 elements are in no chunk"),
        ([((0, 0), (3, 6))], "6 of 24 elements are in no chunk"),
        ([((0, 0), (2, 6)), ((3, 0), (1, 6))], "6 of 24 elements are in no chunk"),
        ([((0, 0), (3, 6)), ((2, 0), (2, 6))], "overlap but are not equal"),
        ([((0, 0), (2, 6)), ((1, 0), (2, 6))], "overlap but are not equal"),
        ([((0, 0), (4, 6)), ((1, 1), (1, 1))], "overlap but are not equal"),
        ([((0, 0), (5, 6))], "overlap but are not equal"),
        # The larger of two that begin at one place is no replica of the smaller.
        ([((0, 0), (2, 6)), ((0, 0), (4, 6)), ((2, 0), (2, 6))], "overlap but are not equal"),
        (
            [((0, 0), (2, 3)), ((1, 2), (2, 3)), ((0, 3), (2, 3)), ((2, 0), (2, 3))],
            "overlap but are not equal",
        ),
    ],
)
def test_gaps_and_overlaps_are_not(boxes: list[Box], said: str) -> None:
    """Volumes that add up prove nothing when boxes overlap."""
    for order in (boxes, boxes[::-1]):
        with pytest.raises(CheckpointError, match=f"tensor 'w'.* {said}"):
            whole(*order)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape cut into boxes, each cut again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 8)) if shape else 0):
        at = draw(st.integers(0, len(boxes) - 1))
        dim = draw(st.integers(0, len(shape) - 1))
        offsets, sizes = boxes[at]
        if sizes[dim] < 2:
            continue
        cut = draw(st.integers(1, sizes[dim] - 1))
        boxes[at] = (offsets, (*sizes[:dim], cut, *sizes[dim + 1 :]))
        moved = (*offsets[:dim], offsets[dim] + cut, *offsets[dim + 1 :])
        boxes.append((moved, (*sizes[:dim], sizes[dim] - cut, *sizes[dim + 1 :])))
    return shape, draw(st.permutations(boxes))


def elements(box: Box) -> list[tuple[int, ...]]:
    return list(product(*(range(at, at + size) for at, size in zip(*box, strict=True))))


@settings(deadline=None, max_examples=examples(120))
@given(tilings(), st.randoms(use_true_random=False))
def test_any_tiling_is_whole_until_it_is_changed(
    tiling: tuple[tuple[int, ...], list[Box]], chance: random.Random
) -> None:
    """Over several ranks; and a brute count of elements agrees after a box was moved, dropped or doubled."""
    shape, boxes = tiling
    boxes = list(boxes)
    ranks = [
        manifest(rank, 3, [box for i, box in enumerate(boxes) if i % 3 == rank], shape=shape)
        for rank in range(3)
    ]
    merged = coverage(ranks)
    assert sorted(chunk.offsets for _, chunk in merged.tensors["w"].chunks) == sorted(
        offsets for offsets, _ in boxes
    )
    at = chance.randrange(len(boxes))
    offsets, sizes = boxes[at]
    if chance.random() < 0.3:
        del boxes[at]
    elif shape:
        dim = chance.randrange(len(shape))
        lower = max(0, offsets[dim] + chance.choice([-1, 1]))
        lower = min(lower, shape[dim] - sizes[dim])
        boxes[at] = ((*offsets[:dim], lower, *offsets[dim + 1 :]), sizes)
    distinct = [element for box in set(boxes) for element in elements(box)]
    tiles = len(distinct) == len(set(distinct)) == len(elements(((0,) * len(shape), shape)))
    try:
        whole(*boxes, shape=shape)
    except CheckpointError:
        assert not tiles
    else:
        assert tiles


def test_replicas_must_agree() -> None:
    """Two ranks that write the same box write the same bytes, or one of them has drifted."""
    full: list[Box] = [((0, 0), (4, 6))]
    coverage([manifest(0, 2, full), manifest(1, 2, full)])
    with pytest.raises(CheckpointError, match=r"tensor 'w' at \[0, 0\]: the bytes of rank 1 differ"):
        coverage([manifest(0, 2, full), manifest(1, 2, full, crc32=6)])


def test_one_replica_is_kept_and_no_empty_box() -> None:
    """Wherever they stand in the manifests; what is left is in order of offsets, as a reader wants it."""
    left, right = ((0, 0), (4, 3)), ((0, 3), (4, 3))
    merged = coverage([manifest(boxes=[right, ((2, 2), (0, 1)), left, right, left])]).tensors["w"]
    assert [chunk.offsets for _, chunk in merged.chunks] == [(0, 0), (0, 3)]
    merged = coverage([manifest(boxes=[((0, 0), (0, 6)), ((0, 0), (4, 6))])]).tensors["w"]
    assert [chunk.sizes for _, chunk in merged.chunks] == [(4, 6)]
    rows = [((0, 0), (2, 6)), ((2, 0), (0, 6)), ((2, 0), (2, 6))]
    merged = coverage([manifest(rank, 3, [box]) for rank, box in enumerate(rows)]).tensors["w"]
    assert [rank for rank, _ in merged.chunks] == [0, 2]
    scalar = coverage([manifest(rank, 2, [((), ())], shape=()) for rank in range(2)]).tensors["w"]
    assert len(scalar.chunks) == 1


def test_manifests_come_in_any_order() -> None:
    """A chunk's object counts in its rank's manifest: a reader finds it by the rank."""
    upper, lower = manifest(0, 2, [((0, 0), (2, 6))]), manifest(1, 2, [((2, 0), (2, 6))])
    merged = coverage([lower, upper])
    assert merged.manifests == (upper, lower)
    assert [(rank, chunk.offsets) for rank, chunk in merged.tensors["w"].chunks] == [(0, (0, 0)), (1, (2, 0))]


def test_a_tensor_that_nobody_writes_is_a_gap() -> None:
    """Each rank lists what it holds, so what was assigned to nobody shows."""
    with pytest.raises(CheckpointError, match="tensor 'w': 24 of 24 elements are in no chunk"):
        coverage([manifest(0, 2), manifest(1, 2)])


def test_an_empty_tensor_needs_no_chunk() -> None:
    """There is nothing to write, whichever dimension is empty."""
    for shape in ((0, 3), (3, 0), (0,)):
        assert coverage([manifest(shape=shape)]).tensors["w"].chunks == []


@pytest.mark.parametrize("field", ["run_id", "attempt", "step", "save", "level", "incarnation"])
def test_manifests_of_two_saves_do_not_mix(field: str) -> None:
    """Not of two runs, nor of two process groups that a poor store gave one attempt number."""
    full: list[Box] = [((0, 0), (4, 6))]
    other = {"run_id": "b", "level": "weights", "incarnation": "x"}.get(field, 99)
    with pytest.raises(CheckpointError, match=f"rank 1 records {field} "):
        coverage([manifest(0, 2, full), manifest(1, 2, full, **{field: other})])


@pytest.mark.parametrize("worlds", [(2, 3), (3, 2)])
def test_manifests_of_two_worlds_do_not_mix(worlds: tuple[int, int]) -> None:
    """Two ranks of which one counts another beside them: neither's set is taken for whole."""
    full: list[Box] = [((0, 0), (4, 6))]
    with pytest.raises(
        CheckpointError, match=f"rank 1 records world {worlds[1]}, but rank 0 records {worlds[0]}"
    ):
        coverage([manifest(rank, world, full) for rank, world in enumerate(worlds)])


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([], "no manifest of any rank"),
        ([0], "manifests of 2 of 3 ranks are missing .rank 1"),
        ([1, 2], "manifests of 1 of 3 ranks are missing .rank 0"),
        ([0, 1, 1], "manifests of 1 of 3 ranks are missing .rank 2"),
        ([0, 1, 2, 2], "rank 2 appears twice"),
    ],
)
def test_every_rank_is_needed_once(ranks: list[int], said: str) -> None:
    """However many times another is there."""
    full: list[Box] = [((0, 0), (4, 6))]
    with pytest.raises(CheckpointError, match=said):
        coverage([manifest(rank, 3, full) for rank in ranks])


def test_ranks_agree_on_what_a_tensor_is_stored_as() -> None:
    """A float8 of one rank in the bytes of a uint8, of another as it is."""
    plain = manifest(0, 2, [((0, 0), (4, 6))])
    tensor = manifest(1, 2, []).tensors[0]._replace(stored="uint8")
    with pytest.raises(CheckpointError, match=r"tensor 'w' is .* on rank 1, but .* on another"):
        coverage([plain, replace(manifest(1, 2), tensors=(tensor,))])


@pytest.mark.parametrize(("field", "value"), [("dtype", "uint8"), ("shape", (6, 4))])
def test_ranks_agree_on_what_a_tensor_is(field: str, value: object) -> None:
    """Else no reader can know where its bytes go."""
    with pytest.raises(CheckpointError, match=r"tensor 'w' is .* on rank 1, but .* on another"):
        coverage([manifest(0, 2, [((0, 0), (4, 6))]), manifest(1, 2, [], **{field: value})])
