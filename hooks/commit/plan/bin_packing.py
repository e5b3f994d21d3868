"""Bin packing: how tensors become objects. The plan is pure, of boxes and byte ranges, made before the notice.

An object has at most `target` bytes, header included. So it fits a reused buffer, and one plain PUT carries it. A larger tensor
is split along its first dimension; a single row that is larger, along the next dimension, and so on. So each piece is both a
box of the tensor and a run of its row-major elements.

Small pieces are packed, largest first, into the room that objects still have. No object holds two tiers. So a save can put the
most valuable tier first, and leave unchanged objects out. The same items give the same plan on every rank and in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ....providers.errors import UsageError
from ...checkpoint.format.crc import combine, crc32
from ...checkpoint.format.dtypes import ITEMSIZE
from ...checkpoint.format.safetensors_header import HEADER_ROOM, header, header_room, label, labels
from ...checkpoint.tier import Tier

#: Large enough for one connection's best rate; four in flight stay far below the 512 MiB of law 9.
OBJECT_BYTES = 32 * 2**20
#: Most pieces and bytes of the first object, which leaves while no other is on its way: such an object is assembled in 2 ms.
_FIRST_PIECES, _FIRST_BYTES = 256, 2**20
#: Most pieces for which an object's CRC is combined from theirs. With more pieces the CRC of the bytes costs less.
_COMBINED = 64


class PlannedTensor(NamedTuple):
    """A tensor, or the shard of one, that this rank is to write. (A tuple, because a save compares those of all its tensors.)"""

    name: str
    #: The dtype of the bytes that are written.
    dtype: str
    #: The sizes of the tensor or shard that this rank holds.
    sizes: tuple[int, ...]
    #: The shard's corner in the global tensor; None if this rank holds the whole tensor.
    offsets: tuple[int, ...] | None = None
    #: The global shape; None if this rank holds the whole tensor.
    shape: tuple[int, ...] | None = None
    tier: Tier = Tier.WEIGHTS
    #: The ranks that hold it, as in `StateTensor`: `partitioner` deals out the tensors of several holders.
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A box of one item that goes into one object."""

    #: The index of the planned item.
    item: int
    #: The box in the item: its corner and its sizes.
    local: tuple[int, ...]
    sizes: tuple[int, ...]
    #: The same box as a run of the item's row-major elements: the first, and their number.
    first: int
    count: int
    #: The box's corner in the global tensor.
    offsets: tuple[int, ...]
    #: The byte range in the object, counted from the start of its header.
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """One object: its first bytes, and the pieces that follow back to back."""

    header: bytes
    pieces: tuple[PlannedChunk, ...]
    size: int
    tier: Tier = Tier.WEIGHTS
    #: The ranks that plan the object alike, and one of which writes it; () if this rank holds it alone.
    holders: tuple[int, ...] = ()

    def crc32(self, crcs: Sequence[int], data: memoryview) -> int:
        """Return the CRC of the object's bytes, which it combines from those of its pieces if that costs less."""
        if len(crcs) > _COMBINED:
            return crc32(data)
        sizes = [piece.end - piece.start for piece in self.pieces]
        return combine([(crc32(self.header), len(self.header)), *zip(crcs, sizes, strict=True)])


@dataclass(frozen=True, slots=True)
class _Cut:
    """A piece without a place yet."""

    item: int
    local: tuple[int, ...]
    sizes: tuple[int, ...]
    first: int
    nbytes: int
    room: int


def plan(
    items: Sequence[PlannedTensor], target: int = OBJECT_BYTES, only: Iterable[int] | None = None
) -> tuple[PlannedObject, ...]:
    """Return the objects for these items, tier by tier: a small one, then the largest first. An item without elements needs none.

    Args:
        target: largest size of an object, in bytes.
        only: indices of the items to plan; None for all.

    Raises:
        UsageError: `target` cannot hold even one element and its header.
    """
    cuts: dict[Tier, list[_Cut]] = {}
    for index in range(len(items)) if only is None else only:
        cuts.setdefault(items[index].tier, []).extend(_cut(index, items[index], target))
    return tuple([each for tier in sorted(cuts) for each in _objects(items, cuts[tier], tier, target)])


def _objects(
    items: Sequence[PlannedTensor], cuts: list[_Cut], tier: Tier, target: int
) -> Iterator[PlannedObject]:
    # Largest first, so that the last object to finish is a small one. Then by name and place, not by order of arrival.
    cuts.sort(key=lambda cut: (-cut.nbytes, items[cut.item].name, cut.local))
    first = _first(cuts, target)
    bins = _pack(cuts[: len(cuts) - len(first)], target)
    for bin_ in [first, *bins] if first else bins:
        yield _place(items, bin_, tier)


def _first(cuts: list[_Cut], target: int) -> list[_Cut]:
    """Return the smallest pieces, for an object that is ready at once; none if one object holds all, or all are large."""
    room = target - HEADER_ROOM
    if len(cuts) <= _FIRST_PIECES and sum(cut.nbytes + cut.room for cut in cuts) <= room:
        return []
    room = min(room, _FIRST_BYTES)
    count = 0
    for cut in cuts[: -_FIRST_PIECES - 1 : -1]:
        room -= cut.nbytes + cut.room
        if room < 0:
            break
        count += 1
    return cuts[len(cuts) - count :]


def _cut(index: int, item: PlannedTensor, target: int) -> Iterator[_Cut]:
    itemsize = ITEMSIZE[item.dtype]
    # No part of the item gets a longer label than its far corner.
    corner = item.sizes if item.shape is None else item.shape
    longest = label(item.name, (), corner, (1,))
    room = header_room(longest, len(item.sizes) + 1)
    budget = (target - HEADER_ROOM - room) // itemsize
    if budget < 1:
        raise UsageError(
            f"objects of {target} bytes cannot hold an element of {item.name!r} and its header; use 1 MiB"
        )
    if 0 in item.sizes:
        return
    for local, sizes, first in _boxes(item.sizes, budget):
        yield _Cut(index, local, sizes, first, prod(sizes) * itemsize, room)


def _boxes(sizes: tuple[int, ...], budget: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield contiguous boxes of at most `budget` elements that tile `sizes` in row-major order.

    A box is (its corner, its sizes, the index of its first element).
    """
    if prod(sizes) <= budget:
        yield (0,) * len(sizes), sizes, 0
        return
    row = prod(sizes[1:])
    if row <= budget:
        rows = budget // row
        for start in range(0, sizes[0], rows):
            yield (start, *(0,) * (len(sizes) - 1)), (min(rows, sizes[0] - start), *sizes[1:]), start * row
        return
    for index in range(sizes[0]):
        for corner, inner, first in _boxes(sizes[1:], budget):
            yield (index, *corner), (1, *inner), index * row + first


def _pack(cuts: Iterable[_Cut], target: int) -> list[list[_Cut]]:
    """Pack the pieces first fit, in the given order. If too many objects are open, close the fullest one."""
    bins: list[list[_Cut]] = []
    open_: list[tuple[int, list[_Cut]]] = []  # (bytes left, the bin)
    for cut in cuts:
        need = cut.nbytes + cut.room
        for at, (room, pieces) in enumerate(open_):
            if need <= room:
                pieces.append(cut)
                open_[at] = (room - need, pieces)
                break
        else:
            pieces = [cut]
            bins.append(pieces)
            open_.append((target - HEADER_ROOM - need, pieces))
            # Few objects stay open, so that a plan of a hundred thousand tensors takes linear time.
            if len(open_) > 16:
                open_.remove(min(open_, key=lambda entry: entry[0]))
    return bins


def _place(items: Sequence[PlannedTensor], cuts: list[_Cut], tier: Tier) -> PlannedObject:
    # Falling item size keeps every piece aligned without holes, which safetensors forbids.
    cuts = sorted(cuts, key=lambda cut: -ITEMSIZE[items[cut.item].dtype])
    offsets = [_global(items[cut.item], cut) for cut in cuts]
    shapes = [item.sizes if item.shape is None else item.shape for item in (items[cut.item] for cut in cuts)]
    called = labels(
        (items[cut.item].name, shape, corner, cut.sizes)
        for cut, shape, corner in zip(cuts, shapes, offsets, strict=True)
    )
    head = header(
        (name, items[cut.item].dtype, cut.sizes, cut.nbytes) for name, cut in zip(called, cuts, strict=True)
    )
    pieces = []
    position = len(head)
    for cut, corner in zip(cuts, offsets, strict=True):
        end = position + cut.nbytes
        pieces.append(
            PlannedChunk(cut.item, cut.local, cut.sizes, cut.first, prod(cut.sizes), corner, position, end)
        )
        position = end
    return PlannedObject(head, tuple(pieces), position, tier)


def _global(item: PlannedTensor, cut: _Cut) -> tuple[int, ...]:
    if item.offsets is None:
        return cut.local
    return tuple(base + at for base, at in zip(item.offsets, cut.local, strict=True))
