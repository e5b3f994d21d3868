"""Optimizers that are not registered, and wrappers that step registered ones."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ..inventory.objects import attributes, outer_variables
from ..inventory.walk import reach
from ..parts.module_entries import name_of

#: The most names in a message.
_FEW = 2
#: Limits of the search for an optimizer inside registered values: depth, and number of objects. A container longer
#: than the last limit holds data and is skipped.
_DEPTH, _OBJECTS, _LONG = 3, 2000, 200
#: Functions on the call stack that may belong to a wrapper of the optimizer that steps.
_FRAMES = 12


class UnregisteredOptimizer:
    """An optimizer of this process that is not registered, and the tensors that it trains."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.ref = weakref.ref(optimizer)
        self.cls = type(optimizer).__qualname__
        #: The registered tensors that the optimizer steps, and the number of its other tensors.
        self.names: tuple[str, ...] = ()
        self.others = 0
        #: The registered optimizers that have one of its parameters.
        self.owners: frozenset[str] = frozenset()
        self.turns = 0
        self.warned = False
        #: Whether the optimizer belongs to a registered object, or wraps a registered optimizer.
        self.ignored = False
        self._count = -1

    def follow(
        self, optimizer: Optimizer, values: Mapping[str, Any], registered: Iterable[tuple[str, Optimizer]]
    ) -> None:
        """Take the optimizer's parameters as they are now.

        Args:
            optimizer: the optimizer that this object describes.
            values: the registered values, by name.
            registered: the optimizers among them, each with the name that it is saved under.
        """
        names = parameter_names(values)
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


def few(items: Iterable[str]) -> str:
    names = [*items]
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _params(optimizer: Optimizer) -> Iterator[int]:
    return (id(p) for group in optimizer.param_groups for p in group["params"])


def parameter_names(values: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of registered parameters and tensors, by id.

    Do not keep the result: another tensor may reuse the id of one that is gone.
    """
    names: dict[int, str] = {}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            names |= {id(p): f"{name}.{name_of(value, key)}" for key, p in value.named_parameters()}
        elif isinstance(value, torch.Tensor):
            names[id(value)] = name
    return names


def holds(root: object, wanted: Set[int], depth: int = _DEPTH) -> bool:
    """Return whether an object with its own state holds one of these optimizers in plain attributes.

    Then the object's own `state_dict()`, or a wrapper's steps, stand for the optimizer. The search skips schedulers
    and modules: they do not save an optimizer.
    """
    return any(id(each) in wanted for each in within(root, depth))


def within(root: object, depth: int = _DEPTH) -> Iterator[object]:
    """Yield what an object holds in plain attributes and containers, nearest first."""
    return (each for _, each in reach(root, _inside, lambda each: True, depth=depth, most=_OBJECTS))


#: Types that the search does not enter.
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


def _inside(value: object) -> Iterator[tuple[str, Any]]:
    held: Any = ()
    if isinstance(value, dict | list | tuple):
        if len(value) <= _LONG:
            held = value.values() if isinstance(value, dict) else value
    elif isinstance(value, MethodType) and isinstance(value.__self__, LRScheduler):
        held = (value.__self__,)
    elif isinstance(value, FunctionType):
        held = outer_variables(value).values()
    elif isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.values())
    elif not isinstance(value, _OPAQUE):
        # An optimizer's moments are many, and contain no optimizers. Its hooks are others'.
        left_out = ("state", "param_groups", "_optimizer_") if isinstance(value, Optimizer) else ("/",)
        held = (each for name, each in attributes(value).items() if not name.startswith(left_out))
    return (("", each) for each in [*held])


def wrappers_on(
    frame: FrameType | None, optimizer: Optimizer, values: Mapping[str, Any]
) -> Iterator[tuple[object, frozenset[torch.Size]]]:
    """Yield the unregistered objects whose methods step an optimizer now.

    An object with a model or a loader beside the optimizer trains rather than wraps, and comes with the shapes of all that it trains.

    Args:
        frame: the innermost frame of the step.
        optimizer: the registered optimizer that steps.
        values: the registered values, by name.
    """
    for _ in range(_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        # `f_locals` keeps the values of a frame alive until the frame ends: ask only functions that end with the step.
        if code.co_argcount and "step" in code.co_name:
            owner = frame.f_locals.get(code.co_varnames[0])
            foreign = owner is not optimizer and not isinstance(owner, _OPAQUE)
            if foreign and holds(owner, {id(optimizer)}, depth=2) and not knows(values, owner):
                trains = not isinstance(owner, Optimizer) and any(
                    isinstance(each, (nn.Module, DataLoader)) for each in within(owner, 2)
                )
                trained = (p.shape for group in optimizer.param_groups for p in group["params"] if trains)
                yield owner, frozenset(trained)
        frame = frame.f_back


def knows(values: Mapping[str, Any], owner: object) -> bool:
    """Return whether an object is registered, or inside a registered one."""
    return any(each is owner or holds(each, {id(owner)}) for each in values.values())
