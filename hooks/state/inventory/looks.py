"""What values look like, in a form that is compared: types, layouts, and checksums of what is too large to keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ...checkpoint.format.boxes import order_of
from ...checkpoint.format.coverage import MergedTensor
from ...checkpoint.format.crc import crc32
from ...checkpoint.format.values.placeholders import SHARED, SavedObject, UnsavedValue
from ..memory_access import copyable
from .ownership import is_array
from .walk import Way, children

#: The look of each value, by its keys.
Looks = dict[Way, Any]
#: Classes of containers that an object may exchange for others when it takes its state back.
_ALIKE: tuple[Any, ...] = (dict, (list, tuple, deque), (set, frozenset))


def looks(value: Any, *, classes: bool = True) -> Looks:
    """Return the look of a copied value and of each that it holds.

    Args:
        value: the copied value.
        classes: whether a list looks unlike a tuple, and a dict unlike an `OrderedDict`.
    """
    return dict(_looks(value, (), classes))


def _looks(value: Any, way: Way, classes: bool) -> Iterator[tuple[Way, Any]]:
    yield way, UnsavedValue if way and type(way[-1]) is UnsavedValue else _look(value, classes)
    if isinstance(value, (set, frozenset)):
        return  # two equal sets may list their elements in two orders
    for key, each in children(value):
        yield from _looks(each, (*way, key), classes)


def _look(value: Any, classes: bool) -> Any:
    if isinstance(value, SavedObject) and value.kind == SHARED:
        return _look(value.value, classes)
    if isinstance(value, UnsavedValue) or (isinstance(value, set) and UnsavedValue in {*map(type, value)}):
        return UnsavedValue
    if isinstance(value, torch.Tensor):
        order = tuple(order_of(value.shape, value.stride()) or ())
        return value.dtype, tuple(value.shape), order, crc_of(value)
    if is_array(value):
        return value.dtype, value.shape, crc32(value.tobytes())
    kind = type(value)
    if not classes:
        kind = next((each for each in _ALIKE if isinstance(value, each)), kind)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(repr, value))
    held = children(value)
    # The text of a float tells all its bits apart, but those of a NaN.
    return (kind, repr(value)) if isinstance(held, tuple) else kind


def crc_of(tensor: torch.Tensor) -> int:
    """Return the CRC32 of a tensor's elements, in the order of its dimensions."""
    flat = copyable(tensor.detach()).cpu().contiguous().reshape(-1)
    return int(crc32(memoryview(flat.view(torch.uint8).numpy().data))) if flat.numel() else 0


def is_as_read(entry: MergedTensor, live: torch.Tensor) -> bool:
    """Return whether a whole tensor has the bytes of a checkpoint, by the checksums of its chunks."""
    for _, chunk in entry.chunks:
        box = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        if crc_of(live[box]) != chunk.crc32:
            return False
    return True


def differing(one: Looks, other: Looks) -> Iterator[Way]:
    """Yield the keys at which two values differ, the outer ones first, but not where no save could hold the first one's."""
    unsaved = {way for way, look in one.items() if look is UnsavedValue}
    # Where a key was left out, the live dict has one more.
    lost = {way[:-1] for way in one if way and type(way[-1]) is UnsavedValue}
    for way in [*one, *(way for way in other if way not in one)]:
        if one.get(way, ...) != other.get(way, ...):
            around = {way[:size] for size in range(len(way) + 1)}
            if not around & unsaved and not (way not in one and around & lost):
                yield way
