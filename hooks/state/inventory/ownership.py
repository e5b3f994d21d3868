"""Who else uses the memory of a live value: whether a restore may write there, and who would notice another object in its place.

A fresh script may begin with one tensor under two names, as in `ema = {"model": model.state_dict()}`, and have two from the first step
on. Written in place, the saved average would overwrite the weights. So memory with a second owner is never written.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ..memory_access import unreadable
from ..sharding.dtensor import local
from .objects import is_array
from .walk import ATOMS, children

T = TypeVar("T")


class Extent(NamedTuple):
    """The memory of a tensor or an array."""

    device: str
    #: The addresses of the first byte and of the byte after the last one.
    start: int
    end: int
    #: The type and the shape, and the bytes from one element to the next, for each dimension that has several.
    form: tuple[Any, ...]


def extent(value: Any, address: int | None = None, steps: Sequence[int] = ()) -> Extent | None:
    """Return the memory of a tensor or of a numpy array; None for other values, and without elements.

    Args:
        value: the tensor or the array.
        address: the address of the first element, if the value is a copy of the one whose memory is asked for.
        steps: that one's strides.
    """
    if isinstance(value, torch.Tensor):
        value = local(value)
        if unreadable(value) or not value.numel():
            return None
        device, address = str(value.device), value.data_ptr() if address is None else address
        steps = [each * value.itemsize for each in steps or value.stride()]
    elif is_array(value) and value.size:
        device, address = "cpu", value.__array_interface__["data"][0] if address is None else address
        steps = steps or value.strides
    else:
        return None
    ends = [(size - 1) * step for size, step in zip(value.shape, steps, strict=True)]
    start, end = (
        address + sum(min(0, e) for e in ends),
        address + sum(max(0, e) for e in ends) + value.itemsize,
    )
    several = tuple(step for size, step in zip(value.shape, steps, strict=True) if size > 1)
    return Extent(device, start, end, (value.dtype, *value.shape, several))


def runs(values: Iterable[tuple[Extent, T]]) -> Iterator[list[tuple[Extent, T]]]:
    """Yield the values of each run of overlapping memory, in the order of their addresses."""
    run: list[tuple[Extent, T]] = []
    end = 0
    for each in sorted(values, key=lambda value: value[0][:3]):
        if run and (each[0].device != run[0][0].device or each[0].start >= end):
            yield run
            run, end = [], 0
        run.append(each)
        end = max(end, each[0].end)
    if run:
        yield run


def layouts(extents: Mapping[int, Extent]) -> dict[int, tuple[int, str]]:
    """Return, by id, the number of the run of memory that a value is in, and how it lies there."""
    return {
        key: (number, f"+{each.start - run[0][0].start} {each.form}")
        for number, run in enumerate(runs((each, key) for key, each in extents.items()))
        for each, key in run
    }


def is_whole(value: Any) -> bool:
    """Return whether a tensor or an array is all of the memory that it was made in, and no view of a part."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() == value.nbytes
    base = value.base
    if base is None:
        return True
    if isinstance(base, memoryview):
        return memoryview(base.obj).nbytes == int(value.nbytes)
    return getattr(base, "nbytes", -1) == value.nbytes and (not hasattr(base, "dtype") or is_whole(base))


class Ownership:
    """The owners of the memory of registered dicts' values, as it is now.

    Args:
        others: the tensors of all other registered values.
        dicts: the registered dicts.
    """

    def __init__(self, others: Iterable[torch.Tensor], dicts: Iterable[dict[Any, Any]]) -> None:
        #: How often the walk meets each object, by id.
        self._met: Counter[int] = Counter()
        #: By id: references to an object from outside the container in which the walk met it first.
        self._beside: dict[int, int] = {}
        #: By id of a view: its memory, and how many tensors or references use that.
        self._users: dict[int, tuple[int, int]] = {}
        #: How many values the walk met in the memory of views.
        self._views: Counter[int] = Counter()
        extents: dict[int, Extent] = {}
        for each in dicts:
            self._met[id(each)] += 1
            self._follow(each, extents)
        self._layouts = layouts(extents)
        taken = [(found, 0) for other in others if (found := extent(other)) is not None]
        joint = runs([*taken, *((each, key) for key, each in extents.items())])
        #: The ids of values that share bytes with another registered value.
        self._owned = {key for run in joint if any(not key for _, key in run) for _, key in run}

    def _follow(self, container: Any, extents: dict[int, Extent]) -> None:
        held = children(container)
        # The fields of a dataclass are listed in a dict of ours.
        ours = int(not isinstance(container, (dict, list, tuple, set, frozenset, deque)))
        for _, value in held:
            if type(value) in ATOMS:
                continue
            key = id(value)
            self._met[key] += 1
            memory = extent(value)
            if memory is not None and (self._met[key] == 1 or is_array(value)):
                self._views[_memory(value)] += 1
            if self._met[key] > 1:
                continue
            if memory is not None:
                extents[key] = memory
                if not is_whole(value):
                    self._users[key] = _memory(value), _users(value)
            its_own = getattr(value, "__dict__", None) is value
            self._beside[key] = sys.getrefcount(value) - ours - its_own
            self._follow(value, extents)

    def identity(self, value: Any) -> tuple[Hashable, str]:
        """Return what is equal for two values that are one object, or share memory, and how the value lies in that memory."""
        run, layout = self._layouts.get(id(value), (None, ""))
        return (id(value) if run is None else ("run", run)), layout

    def is_owned(self, value: Any) -> bool:
        """Return whether another registered value than a dict uses a value's memory."""
        return id(value) in self._owned

    def is_view(self, value: Any) -> bool:
        """Return whether a value is a view of memory that something beside registered values uses too."""
        memory, users = self._users.get(id(value), (0, 0))
        return users > self._views[memory]

    def is_seen_beside(self, value: Any) -> bool:
        """Return whether something beside the values of registered dicts refers to a value."""
        return self._beside.get(id(value), 0) > self._met[id(value)] + _OURS


def _memory(value: Any) -> int:
    """Return what identifies the memory that a tensor or an array is in."""
    if isinstance(value, torch.Tensor):
        return int(value.untyped_storage()._cdata)
    return id(value if value.base is None else value.base)


def _users(view: Any) -> int:
    """Return how many tensors use the storage of a view, or how many references there are to the base of an array."""
    if not isinstance(view, torch.Tensor):
        base = view.base
        # A buffer may have other users than its references.
        return sys.getrefcount(base) - 2 if is_array(base) and base.base is None else sys.maxsize
    base = view._base
    hidden = base is not None and sys.getrefcount(base) == 3  # only autograd has it
    return int(torch._C._storage_Use_Count(view.untyped_storage()._cdata)) - 1 - hidden


def _ours() -> int:
    """Return how many references `_follow` itself adds to those of a value."""
    probe = Ownership((), ())
    probe._follow([value := [0]], {})
    return probe._beside[id(value)] - 2  # the list, and this function


_OURS = _ours()
