"""Schedulers, whose class and functions count, and gradient scalers, whose `state_dict` cannot be called at every boundary as it is."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ....providers.errors import StateError
from ..inventory.frozen import freeze_of
from . import rng
from .values import StatefulPart

#: The epochs or steps at which the functions of a scheduler are compared.
_ARGUMENTS = (0, 1, 2, 3, 10, 100, 1_000, 10_000)


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


def functions_of(value: Any) -> list[list[str]]:
    """Return what each of the script's functions that a scheduler of torch calls gives for `_ARGUMENTS`; none if nothing can be told.

    `state_dict()` leaves functions out. Methods and callable objects are not called: a call may change them.
    """
    try:
        states = rng.capture()
        try:
            return [_values(each) for each in _functions(value)]
        finally:
            rng.restore(states)
    except Exception:  # noqa: BLE001 - foreign code, which must not end register
        return []


def _functions(value: Any) -> Iterator[Any]:
    scheduler = value if isinstance(value, LRScheduler) else getattr(value, "scheduler", None)
    if isinstance(scheduler, LRScheduler):
        yield from getattr(scheduler, "lr_lambdas", ())
        yield from filter(None, [getattr(scheduler, "_scale_fn_custom", None)])
        for each in getattr(scheduler, "_schedulers", ()):
            yield from _functions(each)


def _values(function: Any) -> list[str]:
    """Return a function's values to 12 digits, since another machine may round otherwise; none if two calls differ or it is not called."""
    one, other = ([_value(function, each) for each in _ARGUMENTS] for _ in range(2))
    return one if one == other and "" not in one else []


def _value(function: Any, argument: int) -> str:
    if (called := _copy_of(function)) is None:
        return ""
    try:
        value = called(argument)
        return f"{value:.12g}" if isinstance(value, (int, float)) else type(value).__qualname__
    except Exception as error:  # noqa: BLE001 - foreign code
        return type(error).__name__


def _copy_of(function: Any) -> Any:
    """Return a copy whose assignments to variables outside (a count of the calls) reach no one; None if it is no function."""
    if isinstance(function, functools.partial):
        inside = _copy_of(function.func)
        return inside and functools.partial(inside, *function.args, **function.keywords)
    if not isinstance(function, FunctionType):
        return None
    cells = tuple(CellType(each.cell_contents) for each in function.__closure__ or ())
    copied = FunctionType(function.__code__, {**function.__globals__}, None, function.__defaults__, cells)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class ClassedPart(StatefulPart):
    """A scheduler, or an optimizer with its own `state_dict`. Their `load_state_dict` accepts the state of another class."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name, value)
        self._functions = functions_of(value)

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
        saved = tree.get("functions")
        pairs = zip(self._functions, saved if isinstance(saved, list) else (), strict=False)
        self.said = []
        if any(here and before and here != before for here, before in pairs):
            self.said = [
                f"{self.name} ({class_of(self.value)}) calls another function than in the run that saved it, with other values: "
                "the schedule continues with the new one; to continue as before, bring that function back [SG425]"
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
