"""What is asked for at once: every chunk in exactly one load, no request too large, the largest first."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.codec import UnsupportedFormatError
from spotguard.hooks.checkpoint.format.manifest import Chunk
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES
from spotguard.hooks.restore.reads.ranges import (
    GAP_BYTES,
    MOST_PARTS,
    REQUEST_BYTES,
    ReadBatch,
    WantedChunk,
    plan,
)


def wanted(start: int, *sizes: int, key: str = "k", itemsize: int = 1) -> WantedChunk:
    """A chunk of this shape from byte `start` on; its CRC tells it from others."""
    end = start + prod(sizes) * itemsize
    return WantedChunk(key, Chunk((0,) * len(sizes), sizes, 0, start, end, start), itemsize, f"t{start}")


def asked(loads: list[ReadBatch]) -> list[tuple[int, int]]:
    return [(each.start, each.end) for load in loads for each in load.ranges]


def test_neighbours_come_in_one_request() -> None:
    assert asked(plan([wanted(10, 5), wanted(0, 10), wanted(15, 3)])) == [(0, 18)]


def test_a_small_gap_is_read_over_and_a_larger_one_is_not() -> None:
    """Up to the byte."""
    assert asked(plan([wanted(0, 10), wanted(10 + GAP_BYTES, 5)])) == [(0, 15 + GAP_BYTES)]
    assert asked(plan([wanted(0, 10), wanted(11 + GAP_BYTES, 5)])) == [
        (0, 10),
        (11 + GAP_BYTES, 16 + GAP_BYTES),
    ]


def test_objects_are_asked_one_by_one() -> None:
    """Bytes of two objects are no neighbours, whatever their numbers say."""
    loads = plan([wanted(0, 10), wanted(10, 10, key="l")])
    assert [(each.key, each.start) for load in loads for each in load.ranges] == [("k", 0), ("l", 10)]


def test_no_request_is_larger_than_it_may_be() -> None:
    """Neighbours that would make it so begin another."""
    assert asked(plan([wanted(n * 40, 40) for n in range(5)], limit=100)) == [(0, 80), (80, 160), (160, 200)]


def test_a_large_chunk_takes_several_requests_that_are_boxes_of_it() -> None:
    """About equal ones, in its bytes' order; and nothing else rides in them."""
    loads = plan([wanted(8, 9, 3, itemsize=4), wanted(116, 2)], limit=55)
    assert [[each.name for each in load.chunks] for load in loads] == [["t8"], ["t116"]]
    assert [each[1:] for each in loads[0].ranges] == [
        (8, 44, (0, 0), (3, 3)),
        (44, 80, (3, 0), (3, 3)),
        (80, 116, (6, 0), (3, 3)),
    ]


def test_a_row_that_is_too_large_is_cut_along_the_next_dimension() -> None:
    (load,) = plan([wanted(0, 2, 7)], limit=4)
    assert [(each.offsets, each.sizes) for each in load.ranges] == [
        ((0, 0), (1, 4)), ((0, 4), (1, 3)), ((1, 0), (1, 4)), ((1, 4), (1, 3)),
    ]  # fmt: skip


def test_a_chunk_inside_another_rides_with_it() -> None:
    """Two tensors may be of the same bytes."""
    (load,) = plan([wanted(0, 20), wanted(5, 5)])
    assert asked([load]) == [(0, 20)]
    assert len(load.chunks) == 2


def test_a_chunk_without_bytes_is_not_asked_for() -> None:
    assert plan([wanted(5, 0, 3)]) == []


@pytest.mark.parametrize(
    "sizes", [(2**25,), (4, 2**23), (2**12, 2**13), (3, 2**23 + 1), (2**13, 2**12 + 1, 1)]
)
def test_every_written_object_fits_into_a_buffer(sizes: tuple[int, ...]) -> None:
    """Objects of the size that is planned today, and of twice that, which the layout allows."""
    assert prod(sizes) <= 2 * OBJECT_BYTES
    for double in (1, 2):
        (load,) = plan(
            [wanted(0, sizes[0], *sizes[1:-1], sizes[-1] * double)]
            if len(sizes) > 1
            else [wanted(0, sizes[0] * double)]
        )
        assert len(load.ranges) <= MOST_PARTS
        assert all(each.end - each.start <= REQUEST_BYTES for each in load.ranges)


def test_a_chunk_too_large_to_hold_is_refused_by_name_before_any_read() -> None:
    """It may be good: so it is no damage, and no older checkpoint is taken for it."""
    with pytest.raises(
        UnsupportedFormatError, match=r"k: t0 has a chunk of 256 MiB.* with a newer spotguard"
    ):
        plan([wanted(0, 2**28)])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(0, 9), max_size=3), st.sampled_from([1, 2, 4])),
        max_size=20,
    ),
    st.integers(4, 64),
    st.integers(0, 16),
)
def test_any_chunks(layout: list[tuple[int, list[int], int]], limit: int, gap: int) -> None:
    """Each once, whole, in order; no gap that is too large, no request that is; the largest load first."""
    chunks = []
    at = 0
    for before, sizes, itemsize in layout:
        at += before
        chunks.append(wanted(at, *sizes, itemsize=itemsize))
        at = chunks[-1].chunk.end
    some = [each for each in chunks if each.chunk.end > each.chunk.start]
    try:
        loads = plan(chunks[::-1], limit, gap)
    except UnsupportedFormatError:
        assert any(each.chunk.end - each.chunk.start > limit for each in some)
        return
    assert sorted(each for load in loads for each in load.chunks) == sorted(some)
    assert [load.nbytes for load in loads] == sorted([load.nbytes for load in loads], reverse=True)
    for load in loads:
        assert all(0 < each.end - each.start <= limit for each in load.ranges)
        assert all(one.end == other.start for one, other in pairwise(load.ranges))
        assert load.ranges[0].start == load.chunks[0].chunk.start
        assert load.ranges[-1].end == load.chunks[-1].chunk.end
        assert all(b.chunk.start - a.chunk.end <= gap for a, b in pairwise(load.chunks))
        assert len(load.ranges) == 1 or len(load.chunks) == 1
