"""Looks of values, in a form that is compared: types, layouts, and checksums of what is too large to keep.

A layout is the order of a tensor's dimensions in memory. By it kernels choose their way, and another way may change the last bits. A
checkpoint has it for each tensor whose order is not that of its dimensions, and an outline has it as its strides. Memory with gaps or
overlaps has no such order: its outline has strides of 0, and a restore makes it dense.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ...checkpoint.format.boxes import order_of
from ...checkpoint.format.coverage import MergedTensor
from ...checkpoint.format.crc import crc32
from ...checkpoint.format.values.placeholders import UnsavedValue, opened
from ..memory_access import expanded
from ..sharding.dtensor import is_dtensor
from ..sharding.fingerprint import crc_of
from .objects import is_array
from .walk import ATOMS, Way, children, is_plain

#: The look of each value, by its keys.
Looks = dict[Way, Any]
#: Classes of containers that an object may exchange for others when it takes its state back.
_ALIKE: tuple[Any, ...] = (dict, (list, tuple, deque), (set, frozenset))


class _PlainLook(NamedTuple):
    """The look of all that a plain container holds, which is taken apart where it differs from another one."""

    #: Version 2 has no references, which differ between equal values, and all bits of a float.
    data: bytes


def looks(value: Any, *, classes: bool = True) -> Looks:
    """Return the look of a copied value and of each that it holds.

    Args:
        value: the copied value.
        classes: whether a list looks unlike a tuple, and a dict unlike an `OrderedDict`.
    """
    return dict(_looks(value, (), classes))


def _looks(value: Any, way: Way, classes: bool, whole: bool = True) -> Iterator[tuple[Way, Any]]:
    if whole and classes and type(value) not in ATOMS and is_plain(value):
        yield way, _PlainLook(marshal.dumps(value, 2))
        return
    yield way, UnsavedValue if way and type(way[-1]) is UnsavedValue else _look(value, classes)
    if isinstance(value, (set, frozenset)):
        return  # two equal sets may list their elements in two orders
    for key, each in children(value):
        yield from _looks(each, (*way, key), classes, whole)


def _look(value: Any, classes: bool) -> Any:
    value, _ = opened(value)
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


def is_as_read(entry: MergedTensor, live: torch.Tensor) -> bool:
    """Return whether a whole tensor has the bytes of a checkpoint, by the checksums of its chunks."""
    for _, chunk in entry.chunks:
        box = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        if crc_of(live[box]) != chunk.crc32:
            return False
    return True


def differing(one: Looks, other: Looks) -> Iterator[Way]:
    """Yield the keys at which two values differ, the outer ones first, but not where no save could hold the first one's."""
    one, other = _apart(one, other), _apart(other, one)
    unsaved = {way for way, look in one.items() if look is UnsavedValue}
    # Where a key was left out, the live dict has one more.
    lost = {way[:-1] for way in one if way and type(way[-1]) is UnsavedValue}
    for way in [*one, *(way for way in other if way not in one)]:
        if one.get(way, ...) != other.get(way, ...):
            around = {way[:size] for size in range(len(way) + 1)}
            if not around & unsaved and not (way not in one and around & lost):
                yield way


def _apart(these: Looks, others: Looks) -> Looks:
    """Return looks with one for each part of a plain container that looks otherwise there."""
    return {
        each: part
        for way, look in these.items()
        for each, part in (
            _looks(marshal.loads(look.data), way, True, whole=False)
            if isinstance(look, _PlainLook) and others.get(way) != look
            else [(way, look)]
        )
    }


def memory_like(outline: torch.Tensor, device: Any = "cpu") -> torch.Tensor:
    """Return memory in the layout of an outline."""
    if expanded(outline):
        return torch.empty(outline.shape, dtype=outline.dtype, device=device)
    return torch.empty_strided(outline.shape, outline.stride(), dtype=outline.dtype, device=device)


def unlike_layout(name: str, live: torch.Tensor, saved: torch.Tensor) -> list[str]:
    """Return a line about a live tensor that a restore fills, if it is laid out in another way than the saved one was."""
    if is_dtensor(live) or live.shape != saved.shape:
        return []
    here, there = (order_of(each.shape, each.stride()) for each in (live, saved))
    if here is None or here == there:
        return []
    return [
        f"{name} has its dimensions in the order {here} in memory and had them in the order {there or 'of a view'} when it was saved: "
        "training may differ in the last bits; give it the same memory format before guard.restore() [SG606]"
    ]
