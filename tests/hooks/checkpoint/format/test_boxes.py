"""Where two parts of a tensor meet, held against what numpy says."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.boxes import Box, common, run, runs
from tests.tiers import examples

np = pytest.importorskip("numpy")

SHAPE = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def boxes(shape: tuple[int, ...], data: st.DataObject) -> Box:
    offsets = tuple(data.draw(st.integers(0, size)) for size in shape)
    sizes = tuple(
        data.draw(st.integers(0, size - offset)) for size, offset in zip(shape, offsets, strict=True)
    )
    return Box(offsets, sizes)


def cut(array: Any, part: Box) -> Any:
    ends = (slice(at, at + size) for at, size in zip(*part, strict=True))
    return array[(*ends, ...)]


@settings(max_examples=examples(150))
@given(st.data())
def test_they_meet_where_both_hold_an_element(data: st.DataObject) -> None:
    shape = data.draw(SHAPE)
    whole = np.arange(prod(shape)).reshape(shape)
    one, other = boxes(shape, data), boxes(shape, data)
    both = np.intersect1d(cut(whole, one), cut(whole, other))
    met = common(one, other)
    assert (met is None) == (both.size == 0)
    if met is not None:
        assert cut(whole, met).reshape(-1).tolist() == both.tolist()
        assert (cut(cut(whole, one), met.inside(one)) == cut(whole, met)).all()


@settings(max_examples=examples(150))
@given(st.data())
def test_a_contiguous_box_is_a_run_and_no_other_is(data: st.DataObject) -> None:
    shape = data.draw(SHAPE)
    part = boxes(shape, data)
    inside = cut(np.arange(prod(shape)).reshape(shape), part).reshape(-1)
    if inside.size:
        in_one_piece = inside[-1] - inside[0] + 1 == inside.size
        assert run(part, shape) == (inside[0] if in_one_piece else None)


@settings(max_examples=examples(150))
@given(st.data())
def test_the_pieces_of_a_part_are_its_elements_in_order(data: st.DataObject) -> None:
    """As few of them as there are rows that are cut."""
    shape = data.draw(SHAPE)
    part = boxes(shape, data)
    inside = cut(np.arange(prod(shape)).reshape(shape), part).reshape(-1).tolist()
    pieces = list(runs(part, shape))
    assert [first + each for first, count in pieces for each in range(count)] == inside
    if inside and run(part, shape) is not None:
        assert len(pieces) <= max(1, len(inside))
