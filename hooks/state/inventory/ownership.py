"""Who else uses the memory of a live value: whether a restore may write there, and who would notice another object in its place.

A fresh script may begin with one tensor under two names, as in `ema = {"model": model.state_dict()}`, and have two from the first step
on. Written in place, the saved average would overwrite the weights. So memory with a second owner is never written.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..memory_access import unreadable
from ..sharding.dtensor import local
from .walk import ATOMS, children

#: A device, and the addresses of the first byte and of the byte after the last one.
Extent = tuple[str, int, int]


def extent(value: Any) -> Extent | None:
    """Return the memory of a tensor or of a numpy array; None for other values, and without elements."""
    if isinstance(value, torch.Tensor):
        value = local(value)
        if unreadable(value) or not value.numel():
            return None
        first, sizes, device = value.data_ptr(), value.shape, str(value.device)
        steps: Sequence[int] = [each * value.itemsize for each in value.stride()]
    elif is_array(value) and value.size:
        first, sizes, steps = value.__array_interface__["data"][0], value.shape, value.strides
        device = "cpu"
    else:
        return None
    ends = [(size - 1) * step for size, step in zip(sizes, steps, strict=True)]
    return device, first + sum(min(0, e) for e in ends), first + sum(max(0, e) for e in ends) + value.itemsize


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


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
        #: The ids of tensors and arrays in dicts that share bytes with each other, or are met twice.
        self.shared: set[int] = set()
        #: The ids of those that share bytes with another registered value.
        self._owned: set[int] = set()
        extents: dict[int, Extent] = {}
        for each in dicts:
            self._met[id(each)] += 1
            self._follow(each, extents)
        taken = {(*found, -1) for other in others if (found := extent(other)) is not None}
        self._find_shared([*taken, *((*found, key) for key, found in extents.items())])
        self.shared -= self._owned

    def _follow(self, container: Any, extents: dict[int, Extent]) -> None:
        held = children(container)
        # The fields of a dataclass are listed in a dict of ours.
        ours = int(not isinstance(container, (dict, list, tuple, set, frozenset, deque)))
        for _, value in held:
            if type(value) in ATOMS:
                continue
            key = id(value)
            self._met[key] += 1
            if self._met[key] > 1:
                self.shared.update({key} & extents.keys())
                continue
            if (found := extent(value)) is not None:
                extents[key] = found
            self._beside[key] = sys.getrefcount(value) - ours
            self._follow(value, extents)

    def _find_shared(self, extents: list[tuple[str, int, int, int]]) -> None:
        """Note the values of each run of overlapping memory. (The walk meets the same object only once here.)"""
        run: list[int] = []
        device, end = "", 0
        for each in [*sorted(extents), ("", 0, 0, -1)]:
            if run and (each[0] != device or each[1] >= end):
                if len(run) > 1:
                    (self._owned if -1 in run else self.shared).update(run)
                run, end = [], 0
            run.append(each[3])
            device, end = each[0], max(end, each[2])

    def alone(self, value: Any) -> bool:
        """Return whether the walk met a value at one place only, and nothing else that it knows uses its memory."""
        key = id(value)
        return self._met[key] == 1 and key not in self.shared and key not in self._owned

    def is_owned(self, value: Any) -> bool:
        """Return whether another registered value than a dict uses a value's memory."""
        return id(value) in self._owned

    def places(self, value: Any) -> int:
        """Return at how many places the walk met a value."""
        return self._met[id(value)]

    def is_seen_beside(self, value: Any) -> bool:
        """Return whether something beside the values of registered dicts refers to a value."""
        return self._beside.get(id(value), 0) > self._met[id(value)] + _OURS


def _ours() -> int:
    """Return how many references `_follow` itself adds to those of a value."""
    probe = Ownership.__new__(Ownership)
    probe._met, probe._beside = Counter(), {}
    probe._follow([value := [0]], {})
    return probe._beside[id(value)] - 2  # the list, and this function


_OURS = _ours()
