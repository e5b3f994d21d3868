"""Optimizers that nobody registered: what each of them trains, and whether a registered object answers for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..parts.module import unwrap

#: Names in a message.
_FEW = 2
#: How far, and among how many objects, an optimizer is looked for inside of what is registered. What is longer than the
#: last holds data.
_DEPTH, _OBJECTS, _LONG = 3, 2000, 200


class UnregisteredOptimizer:
    """An optimizer of this process that nobody registered, and what it trains."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.ref = weakref.ref(optimizer)
        self.cls = type(optimizer).__qualname__
        #: Registered tensors that it steps, and how many others.
        self.names: tuple[str, ...] = ()
        self.others = 0
        #: Registered optimizers that have one of its parameters.
        self.owners: frozenset[str] = frozenset()
        self.turns = 0
        self.warned = False
        #: It belongs to a registered object, or is a wrapper around one.
        self.ignored = False
        self._count = -1

    def follow(
        self, optimizer: Optimizer, values: Mapping[str, Any], registered: Iterable[tuple[str, Optimizer]]
    ) -> None:
        """Take its parameters as they are now.

        Args:
            values: what is registered, by name.
            registered: the optimizers of that, each under the name that answers for it.
        """
        names = _names(values)
        owners: dict[str, set[int]] = {}
        for name, each in registered:
            owners.setdefault(name, set()).update(_params(each))
        params = [*_params(optimizer)]
        self._count = len(params)
        self.names = tuple(names[key] for key in params if key in names)
        self.others = len(params) - len(self.names)
        self.owners = frozenset(name for name, owned in owners.items() if not owned.isdisjoint(params))

    def outdated(self, optimizer: Optimizer) -> bool:
        return self._count != sum(len(group["params"]) for group in optimizer.param_groups)

    @property
    def words(self) -> str:
        if not self.names:
            return f"{self.cls} trains {self.others} tensors of no registered module"
        return f"{self.cls} trains {few(self.names)}"


def few(words: Iterable[str]) -> str:
    found = [*words]
    more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return ", ".join(found[:_FEW]) + more


def _params(optimizer: Optimizer) -> Iterator[int]:
    return (id(p) for group in optimizer.param_groups for p in group["params"])


def _names(values: Mapping[str, Any]) -> dict[int, str]:
    """By id, registered parameters and tensors. Not to be kept: ids of tensors that are gone may be anybody's."""
    names: dict[int, str] = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            names |= {id(p): f"{name}.{key}" for key, p in unwrap(value).named_parameters()}
        elif isinstance(value, torch.Tensor):
            names[id(value)] = name
    return names


def holds(root: object, wanted: Set[int]) -> bool:
    """Whether an object with a state of its own has one of these optimizers in it, by plain attributes: then its own
    words, or a wrapper's steps, stand for it. A scheduler's and a module's do not: they do not save it."""
    layer, seen = [root], {id(root)}
    for _ in range(_DEPTH):
        below = [each for value in layer for each in _inside(value)]
        layer = [each for each in {id(each): each for each in below}.values() if id(each) not in seen]
        if any(id(each) in wanted for each in layer):
            return True
        seen.update(map(id, layer))
        if len(seen) > _OBJECTS:
            return False
    return False


#: Not looked into.
_OPAQUE = (
    torch.Tensor,
    nn.Module,
    LRScheduler,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    ModuleType,
    type,
)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict | list | tuple):
        if len(value) > _LONG:
            return ()
        return value.values() if isinstance(value, dict) else value
    if isinstance(value, _OPAQUE):
        return ()
    held = getattr(value, "__dict__", {})
    if isinstance(value, Optimizer):  # its moments are many, and no optimizers
        return [each for name, each in held.items() if name not in ("state", "param_groups")]
    return list(held.values())
