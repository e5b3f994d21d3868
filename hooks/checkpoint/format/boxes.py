"""Boxes of a tensor: where two of them meet, and which lie in one piece in memory. Values in, values out.

A checkpoint was cut by the ranks that wrote it, and is read by ranks that hold other parts: all that one needs to know is
where the box that was written and the box that is wanted meet. A 0-d tensor is one box, `((), ())`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple


class Box(NamedTuple):
    """A part of a tensor, or of another box: its corner, and its extent in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    def inside(self, other: Box) -> Box:
        """The same elements, counted from the corner of a box that holds them."""
        return Box(tuple([a - b for a, b in zip(self.offsets, other.offsets, strict=True)]), self.sizes)


def common(one: Box, other: Box) -> Box | None:
    """The elements in both; None where there are none."""
    offsets, sizes = [], []
    for a, n, b, m in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True):
        first = max(a, b)
        size = min(a + n, b + m) - first
        if size <= 0:
            return None
        offsets.append(first)
        sizes.append(size)
    return Box(tuple(offsets), tuple(sizes))


def runs(part: Box, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """A part's elements, in order, as row-major pieces of a box of these sizes: (first element, how many)."""
    strides = [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    cut = max((dim for dim, size in enumerate(sizes) if part.sizes[dim] != size), default=0)
    count = prod(part.sizes[cut:])
    ranges = [range(at, at + size) for at, size in zip(*part, strict=True)]
    last = sum(at * stride for at, stride in zip(part.offsets[cut:], strides[cut:], strict=True))
    for place in product(*ranges[:cut]) if part.numel else ():
        yield sum(at * stride for at, stride in zip(place, strides[:cut], strict=True)) + last, count


def run(part: Box, sizes: Sequence[int]) -> int | None:
    """The first element of a part, if its elements lie in one row-major piece of a box of these sizes; else None."""
    cut = False  # in a dimension behind this one
    first, stride = 0, 1
    for offset, size, whole in zip(
        reversed(part.offsets), reversed(part.sizes), reversed(sizes), strict=True
    ):
        if cut and size != 1:
            return None
        cut = cut or size != whole
        first += offset * stride
        stride *= whole
    return first
