"""Schedulers, whose class and functions count, and gradient scalers, whose `state_dict` cannot be called at every boundary as it is."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ....providers.errors import StateError
from ..inventory.frozen import freeze_of
from .values import StatefulPart


def check_class(name: str, here: str, saved: str) -> None:
    """Raise `StateError` unless a saved object was of this class."""
    if here != saved:
        raise StateError(
            f"{name} is {here} here and {saved} in the checkpoint; register the same class, or leave it out of register to "
            "start it fresh [SG602]"
        )


def class_of(value: Any) -> str:
    """Return the name of a class, with those of the schedulers that an object is made of.

    A wrapper that shows a scheduler's state as its own (Accelerate's) counts as the scheduler.
    """
    if not isinstance(value, LRScheduler) and hasattr(
        inside := getattr(value, "scheduler", None), "state_dict"
    ):
        return class_of(inside)
    several = getattr(value, "_schedulers", ())
    return type(value).__qualname__ + (f"({', '.join(map(class_of, several))})" if several else "")


def functions_of(value: Any) -> str:
    """Return Python's version and a digest of the script's functions that a scheduler calls (LambdaLR's); "" if it has none.

    `state_dict()` leaves functions out. Another version of Python has other bytecode.
    """
    if not (functions := [*_functions(value)]):
        return ""
    told = repr([_told(each, frozenset()) for each in functions])
    return f"{sys.version_info[:2]} {hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _functions(value: Any) -> Iterator[Any]:
    if not isinstance(value, LRScheduler):
        value = getattr(value, "scheduler", value)
    for held in getattr(value, "__dict__", {}).values():
        for each in held if isinstance(held, (list, tuple)) else (held,):
            if isinstance(each, (FunctionType, MethodType, functools.partial)):
                yield each
    for each in getattr(value, "_schedulers", ()):
        yield from _functions(each)


def _told(value: Any, above: frozenset[int]) -> Any:
    """Return what a function does: bytecode, constants, and the numbers and functions that it reads from outside."""
    if id(value) in above:
        return "above"
    tell = functools.partial(_told, above=above | {id(value)})
    if isinstance(value, functools.partial):
        return tell(value.func), tell(value.args), tell(value.keywords)
    if isinstance(value, MethodType):
        return tell(value.__func__)
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, tell(value.co_consts)
    if isinstance(value, FunctionType):
        if value.__module__.startswith("torch."):  # its version is compared already
            return value.__qualname__
        code, cells = value.__code__, value.__closure__ or ()
        read = [value.__globals__[key] for key in code.co_names if key in value.__globals__]
        held = [each.cell_contents for each in cells if each != CellType()]
        return tell(code), tell(value.__defaults__), tell(value.__kwdefaults__), tell(held), tell(read)
    if isinstance(value, (list, tuple)):
        return [*map(tell, value)]
    if isinstance(value, dict):
        return [(tell(key), tell(each)) for key, each in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    is_plain = value is None or type(value) in (bool, int, float, complex, str, bytes)
    return repr(value) if is_plain else type(value).__qualname__


class ClassedPart(StatefulPart):
    """A scheduler, or an optimizer with its own `state_dict`. Their `load_state_dict` accepts the state of another class."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._functions = functions_of(value) if is_like_scheduler(value) else ""

    def tree(self) -> Any:
        return {"class": class_of(self.value), "state": self._frozen, "functions": self._functions}

    def targets(self, tree: Any) -> None:
        if not isinstance(tree, dict) or not {"class", "state"} <= tree.keys():
            raise StateError(
                f"{self.name}: the checkpoint holds no scheduler or optimizer under this name [SG602]"
            )
        check_class(self.name, class_of(self.value), tree["class"])

    def put_back(self, tree: Any) -> None:
        super().put_back(tree["state"])
        here, saved = self._functions.rpartition(" "), str(tree.get("functions", "")).rpartition(" ")
        self.said = []
        if here != saved and (here[0] == saved[0] or "" in (here[0], saved[0])):
            self.said = [
                f"{self.name} ({class_of(self.value)}) calls another function than in the run that saved it, in its code or in a "
                "number that it reads: the schedule continues with the new one; to continue as before, bring that function back [SG425]"
            ]


def is_like_scheduler(value: object) -> bool:
    """Return whether the value changes an optimizer's options, even if it is not torch's, or wraps such a scheduler."""
    return (
        isinstance(value, LRScheduler)
        or isinstance(getattr(value, "scheduler", None), LRScheduler)
        or (hasattr(value, "optimizer") and hasattr(value, "get_last_lr"))
    )


class ScalerPart(StatefulPart):
    """A `GradScaler`, whose `state_dict` reads two numbers from the device.

    One that is not enabled has an empty state, which an enabled one would refuse, and no place for the state of another.

    Read at each boundary, they would have training wait there for all kernels of the step. So a boundary copies them on
    the device, and a save, which waits for the device anyway, reads the copies.
    """

    def at_boundary(self) -> None:
        scaler = self.value
        scale, growth = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
        if scale is None or scale.is_cpu:  # it makes them at its first use
            super().at_boundary()
            return
        state = {
            "scale": scale,
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": growth,
        }
        self._frozen = freeze_of(self.name, state, self.forms)

    def tree(self) -> Any:
        tree = self._frozen
        if not isinstance(tree, dict):
            return tree
        return {key: each.item() if isinstance(each, torch.Tensor) else each for key, each in tree.items()}

    def put_back(self, tree: Any) -> None:
        self.said = []
        if bool(tree) == self.value.is_enabled():
            super().put_back(tree)
        elif tree:
            self.said = [
                f"{self.name} is not enabled here, and was when it was saved: its scale of {tree.get('scale')} is not restored; "
                "enable it before register to go on with it"
            ]
        else:
            self.said = [
                f"{self.name} was not enabled when it was saved: it begins with its own scale of {self.value.get_scale()}"
            ]


def reads_a_device(value: object) -> bool:
    """Return whether the value is a `GradScaler` of torch's own state."""
    return (
        isinstance(value, torch.amp.GradScaler)
        and type(value).state_dict is torch.amp.GradScaler.state_dict
        and type(value).get_scale is torch.amp.GradScaler.get_scale
    )
