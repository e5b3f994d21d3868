"""Averages of weights, found by how they move: a few elements of a weight, and of each tensor in its shape, at two boundaries."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..inventory.reachable import may_be_state
from ..memory_access import unreadable
from .unregistered import parameter_names

#: Elements of a weight that are compared, and how many of them have to move.
_ELEMENTS, _MOVED = 64, 8
#: The largest part of the way to the weights that an average goes in one turn.
_PART = 0.9
#: Weights of each registered module that an average is searched for, and the most tensors in the shape of one that are compared.
_WEIGHTS, _TENSORS = 2, 2048


class SampledWeight:
    """A few elements of a weight, and of tensors in its shape, at two boundaries in a row.

    An average moves by the same part of the way to the weight in all elements, which nothing else does: a copy has the weight itself.
    A device copies them to the host, and nobody waits for it: they are compared at a later boundary.

    Args:
        name: the name of the weight.
        weight: the weight.
    """

    def __init__(self, name: str, weight: torch.Tensor) -> None:
        self.name, self._weight, self._looks = name, weight, [_elements(weight)]
        #: The tensors in its shape, by id, and the elements of each at the boundaries.
        self._others: dict[int, tuple[weakref.ref[torch.Tensor], list[torch.Tensor]]] = {}
        self._averages: list[int] = []
        #: Done once a device has copied all of them.
        self._copied: torch.cuda.Event | None = None

    def compare(self, tensors: Iterable[torch.Tensor]) -> None:
        """Compare those of these tensors that are in the weight's shape at the next boundary."""
        same = (each for each in tensors if each.shape == self._weight.shape and each is not self._weight)
        same = (each for each in same if each.device == self._weight.device)
        fit = (
            each for each in same if each.is_floating_point() and may_be_state(each) and not unreadable(each)
        )
        some = [*islice(fit, _TENSORS + 1)]
        if len(some) <= _TENSORS:  # if not, a copy would be compared without what it is a copy of
            self._others = {id(each): (weakref.ref(each), [_elements(each)]) for each in some}

    def look_again(self) -> None:
        """Take the elements of the second boundary."""
        self._looks.append(_elements(self._weight))
        for ref, looks in self._others.values():
            if (tensor := ref()) is not None and not unreadable(tensor):
                looks.append(_elements(tensor))
        if self._weight.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._weight.device))

    def is_read(self) -> bool:
        """Return whether the elements of both boundaries are on the host."""
        return len(self._looks) > 1 and (self._copied is None or self._copied.query())

    def has_average(self) -> bool:
        """Return whether one of the tensors has moved towards the weight from boundary to boundary."""
        weights = [each.tolist() for each in self._looks]
        for key, (ref, looks) in self._others.items():
            if len(looks) > 1 and (tensor := ref()) is not None:
                rounding = max(torch.finfo(each.dtype).eps for each in (tensor, self._weight, looks[0]))
                if _follows(looks[0].tolist(), looks[1].tolist(), weights, rounding):
                    self._averages.append(key)
        return bool(self._averages)

    def has_other_than(self, held: set[int]) -> bool:
        """Return whether an average is neither held by registered objects, nor a copy of one that is, as saves have."""
        known = [each.tolist() for key in held & self._others.keys() for each in self._others[key][1]]
        lost = (key for key in self._averages if key not in held)
        return any(self._others[key][1][-1].tolist() not in known for key in lost)


def _follows(before: list[float], now: list[float], weights: list[list[float]], rounding: float) -> bool:
    """Return whether values have moved by one part of the way to one of two states of the weights."""
    moved = [b - a for a, b in zip(before, now, strict=True)]
    clear = sum(abs(m) > 32 * rounding * abs(b) for m, b in zip(moved, now, strict=True)) >= _MOVED
    if not clear or now in weights:
        return False
    for weight in weights:
        way = [w - a for a, w in zip(before, weight, strict=True)]
        square = sum(w * w for w in way)
        part = sum(m * w for m, w in zip(moved, way, strict=True)) / square if square else 0.0
        exact = all(
            abs(m - part * w) <= 0.02 * abs(part * w) + 4 * rounding * abs(b)
            for m, w, b in zip(moved, way, now, strict=True)
        )
        if exact and 0 < part <= _PART:
            return True
    return False


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // _ELEMENTS)][:_ELEMENTS].to(torch.float32, copy=True)
    return some.to("cpu", non_blocking=True)


def weights_of(values: Mapping[str, Any], optimizers: Iterable[Optimizer]) -> Iterator[SampledWeight]:
    """Yield a few weights of each registered module, those in the rarest shapes first, and of these the smallest."""
    names = parameter_names(values)
    groups = [group for each in optimizers for group in each.param_groups]
    stepped = {
        id(p): p for group in groups for p in group.get("params", ())
    }  # one of the script may have others
    for value in values.values():
        if isinstance(value, nn.Module):
            own = [*value.parameters()]
            count = Counter(p.shape for p in own)
            fit = [p for p in own if id(p) in stepped and type(p) is nn.Parameter and p.numel() >= _MOVED]
            fit = [p for p in fit if p.device.type in ("cpu", "cuda")]
            fit = [p for p in fit if p.is_floating_point() and not unreadable(p)]
            fit.sort(key=lambda p: (count[p.shape], p.numel()))
            yield from (SampledWeight(names[id(p)], p) for p in fit[:_WEIGHTS])
