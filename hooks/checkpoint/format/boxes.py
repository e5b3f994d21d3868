"""Boxes of a tensor: their intersection, and their contiguous pieces in memory. Pure functions.

The ranks that wrote a checkpoint cut it into boxes; the ranks that read it hold other boxes. A reader only needs
the intersection of a written box and a wanted box. A 0-d tensor is one box, `((), ())`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple


class Box(NamedTuple):
    """Part of a tensor, or of another box: the offset of its corner, and its size in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    def inside(self, other: Box) -> Box:
        """Return the same elements, with offsets from the corner of `other`, a box that holds them."""
        return Box(tuple([a - b for a, b in zip(self.offsets, other.offsets, strict=True)]), self.sizes)


def common(one: Box, other: Box) -> Box | None:
    """Return the box of the elements in both; None if there are none."""
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
    """Yield the elements of a part, in order, as contiguous pieces of a row-major box of these sizes.

    Each piece is (first element, number of elements).
    """
    strides = [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    cut = max((dim for dim, size in enumerate(sizes) if part.sizes[dim] != size), default=0)
    count = prod(part.sizes[cut:])
    ranges = [range(at, at + size) for at, size in zip(*part, strict=True)]
    last = sum(at * stride for at, stride in zip(part.offsets[cut:], strides[cut:], strict=True))
    for place in product(*ranges[:cut]) if part.numel else ():
        yield sum(at * stride for at, stride in zip(place, strides[:cut], strict=True)) + last, count


def run(part: Box, sizes: Sequence[int]) -> int | None:
    """Return the first element of a part that is one contiguous piece of a row-major box of these sizes, else None."""
    cut = False  # whether a dimension behind this one is cut
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


def order_of(sizes: Sequence[int], steps: Sequence[int]) -> list[int] | None:
    """Return a tensor's dimensions in the order of its memory, the slowest first; None if its memory has gaps or overlaps.

    Args:
        sizes: the sizes of the dimensions.
        steps: elements of memory between two neighbours, for each dimension.
    """
    if 0 in sizes:
        return list(range(len(sizes)))
    wide = sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -steps[dim])
    expected = 1
    for dim in reversed(wide):
        if steps[dim] != expected:
            return None
        expected *= sizes[dim]
    # A dimension of one element has no place of its own: it stays where its number puts it.
    places = iter(wide)
    return [dim if size == 1 else next(places) for dim, size in enumerate(sizes)]


def steps_in(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the elements of memory between two neighbours, for each dimension of a dense tensor in this order."""
    steps, step = [0] * len(sizes), 1
    for dim in reversed(order):
        steps[dim] = step
        step *= max(sizes[dim], 1)
    return steps
