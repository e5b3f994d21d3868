"""Boxes of a tensor: where two of them meet, and which lie in one piece in memory. Values in, values out.

A checkpoint was cut by the ranks that wrote it, and is read by ranks that hold other parts: all that one needs to know is
where the box that was written and the box that is wanted meet. A 0-d tensor is one box, `((), ())`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
