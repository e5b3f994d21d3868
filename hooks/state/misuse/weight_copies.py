"""Tensors of a script's own that follow the weights of a registered module: an average, a teacher, slow weights, in any container.

They are found by their shapes: all of a module's parameters. They are named once they have moved between two looks, twice in a row, lie
near the weights, and are no mere copy of them. A buffer of gradients has the same shapes, and other values.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..memory_access import unreadable
from .carried_gradient import version

#: The boundary behind that of the search. What each turn makes anew equals the weights of one of the two.
_COMPARED = 2
#: A copy lies nearer to the weights than this share of their norm. What has other values lies about as far as the norm.
_NEAR = 0.5
#: The most parameters of a module that are compared, and the most elements of the one whose values are: a copy takes memory.
_MOST, _ELEMENTS = 5000, 2**22
#: By identity: a class may have a metaclass with code of its own.
_KINDS = frozenset({id(torch.Tensor), id(nn.Parameter)})


class FollowedObject:
    """An object that is not kept alive, from look to look.

    Args:
        value: the object.
        mark: returns what is equal while it stands still; None if nothing depends on it.
    """

    def __init__(self, value: Any, mark: Callable[[Any], Any]) -> None:
        self._ref, self._mark_of, self._mark = weakref.ref(value), mark, mark(value)
        #: The looks in a row, up to the last one, at which it had moved.
        self.row = 0

    def look(self) -> bool:
        """Note whether it has moved since the last look, and return whether it lives."""
        if (value := self._ref()) is None:
            return False
        before, self._mark = self._mark, self._mark_of(value)
        self.row = self.row + 1 if None not in (before, self._mark) and before != self._mark else 0
        return True

    @property
    def value(self) -> Any:
        return self._ref()


class WeightCopies:
    """The copies of the weights of registered modules that nothing registered holds.

    Args:
        values: the registered values, by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        modules = ((name, each) for name, each in values.items() if isinstance(each, nn.Module))
        found = ((name, [*module.parameters()]) for name, module in modules)
        self._weights = {
            name: weights
            for name, weights in found
            if len(weights) <= _MOST
            and any(each.numel() <= _ELEMENTS for each in weights)
            and all(type(each) is nn.Parameter for each in weights)
        }
        self._followed: dict[str, list[FollowedObject]] = {}
        #: The parameter of each module whose values are compared, as of the search.
        self._before: dict[str, torch.Tensor] = {}

    def follow(self, found: Iterable[Any]) -> None:
        """Follow those of these objects that have the shape and type of a weight, from the first boundary on."""
        tensors = [each for each in found if id(type(each)) in _KINDS]
        for name, weights in self._weights.items():
            if not any(map(unreadable, weights)):
                self._followed[name] = [FollowedObject(each, version) for each in _like(weights, tensors)]
                self._before[name] = _compared(weights).clone()

    def look(self, boundary: int) -> None:
        """Note what has moved since the last look. On the training thread."""
        for name, followed in self._followed.items():
            followed[:] = [each for each in followed if each.look()]
            if boundary == _COMPARED and name in self._before:
                same = self._before.pop(name), _compared(self._weights[name])
                followed[:] = [each for each in followed if not any(_equal(each.value, one) for one in same)]

    def moved(self, lacks: Callable[[torch.Tensor], bool]) -> Iterator[tuple[str, int]]:
        """Yield the name of each module with copies that have moved twice in a row, and the number of its parameters.

        Args:
            lacks: returns whether no save has a tensor.
        """
        for name, followed in self._followed.items():
            weights, compared = self._weights[name], _compared(self._weights[name])
            tensors = [each.value for each in followed if each.row >= 2]
            if Counter(each.shape for each in weights) - Counter(each.shape for each in tensors):
                continue
            if any(_is_near(each, compared) and lacks(each) for each in tensors):
                yield name, len(weights)


def _like(weights: list[nn.Parameter], tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that have the shape and type of a weight, and are in the memory of no weight or gradient."""
    ours = [each for weight in weights for each in (weight, weight.grad) if each is not None]
    own = {each.untyped_storage().data_ptr() for each in ours if each.layout is torch.strided}
    kinds = {(each.shape, each.dtype, each.device) for each in weights}
    for each in tensors:
        dense = each.layout is torch.strided and not each.is_inference() and each.is_leaf
        like = dense and not unreadable(each) and (each.shape, each.dtype, each.device) in kinds
        if like and each.untyped_storage().data_ptr() not in own:
            yield each


def _compared(weights: list[nn.Parameter]) -> torch.Tensor:
    """Return the largest parameter whose values may be compared."""
    return max(
        (each for each in weights if each.numel() <= _ELEMENTS), key=lambda each: each.numel()
    ).detach()


def _are_read(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Return whether two tensors can be compared: a script may have freed the memory of one since."""
    return one is not None and one.shape == other.shape and not (unreadable(one) or unreadable(other))


def _equal(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and _are_read(one, other) and torch.equal(one.detach(), other)


def _is_near(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    if one is None or not _are_read(one, other):
        return False
    return 0 < float((one.detach() - other).norm()) <= _NEAR * float(other.norm())
