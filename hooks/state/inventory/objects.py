"""Objects of classes inside a registered dict: what a checkpoint keeps of each, and how a live one takes it back.

The class is always the live object's own. So a checkpoint names no code to call, and an object that is missing at a restore cannot
be made.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from ...checkpoint.format.values.saved_object import SavedObject

#: Dicts that typed JSON has a form for.
_DICTS = (OrderedDict, defaultdict, Counter, dict)
_CONTAINERS: frozenset[type] = frozenset({dict, list, tuple, set, frozenset, deque})


def saved_object(value: Any) -> SavedObject | None:
    """Return what a checkpoint keeps of an object, with the live values in it; None for a value that is no such object."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, enum.Enum):
        # A combination of flags has no name in its class.
        known = kind.__members__.get(value.name) is value if value.name else False
        return SavedObject("enum", name, value.name) if known else None
    if dataclasses.is_dataclass(value):
        if _CONTAINERS & {*kind.__mro__} or _has_other_slots(value):
            return None  # fields are not all that it holds
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
        return SavedObject("dataclass", name, {**fields, **getattr(value, "__dict__", {})})
    if isinstance(value, tuple) and kind is not tuple and hasattr(kind, "_fields"):
        return SavedObject("namedtuple", name, tuple(value))
    if isinstance(value, dict) and kind not in _DICTS:
        beside = getattr(value, "__dict__", {})
        return SavedObject("mapping", name, (dict(value), {} if beside is value else dict(beside)))
    state = generator_state(value)
    return None if state is None else SavedObject("generator", name, state)


def _has_other_slots(value: Any) -> bool:
    """Return whether a dataclass instance has attributes that are neither fields nor in its `__dict__`."""
    slots = {each for cls in type(value).__mro__ for each in _listed(vars(cls).get("__slots__", ()))}
    return bool(slots - {field.name for field in dataclasses.fields(value)} - {"__dict__", "__weakref__"})


def _listed(slots: Any) -> Any:
    return (slots,) if isinstance(slots, str) else slots


def generator_state(value: Any) -> Any:
    """Return the state of a script's own random number generator; None if the value is not one."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        more = isinstance(value, random.SystemRandom) or {*vars(value)} - {"gauss_next"}
        return None if more else value.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state(legacy=False)
    return None


def fits(saved: SavedObject, live: Any) -> bool:
    """Return whether a saved object can be filled into the live one."""
    here = saved_object(live)
    if here is None or (here.kind, here.cls) != (saved.kind, saved.cls):
        return False
    if saved.kind == "enum":
        return type(saved.value) is str and saved.value in type(live).__members__
    if saved.kind == "namedtuple":
        return isinstance(saved.value, tuple) and len(saved.value) == len(live)
    if saved.kind == "mapping":
        return isinstance(saved.value, tuple) and [*map(type, saved.value)] == [dict, dict]
    return saved.kind == "generator" or isinstance(saved.value, dict)


def is_mutable(live: Any) -> bool:
    """Return whether an object takes new values itself. Any other one gives its place to another of its class."""
    if isinstance(live, (enum.Enum, tuple)):
        return False
    parameters = getattr(live, "__dataclass_params__", None)
    return parameters is None or not parameters.frozen


def another(live: Any, kind: str, value: Any) -> Any:
    """Return another object of the live one's class, with these values."""
    if kind == "enum":
        return type(live)[value]
    if kind == "namedtuple":
        return tuple.__new__(type(live), value)
    made = copy.copy(live)
    fill(made, kind, value)
    return made


def fill(live: Any, kind: str, value: Any) -> None:
    """Give a live object its values."""
    if kind == "generator":
        _set_generator(live, value)
    elif kind == "mapping":
        items, beside = value
        base: Any = next(each for each in _DICTS if isinstance(live, each))
        base.clear(live)  # the class's own methods may do more than hold the items
        for key, each in items.items():
            base.__setitem__(live, key, each)
        if beside:
            vars(live).clear()
            vars(live).update(beside)
    else:
        for key in {*getattr(live, "__dict__", ())} - {*value}:
            object.__delattr__(live, key)
        for key, each in value.items():
            object.__setattr__(live, key, each)


def _set_generator(live: Any, state: Any) -> None:
    if isinstance(live, torch.Generator):
        live.set_state(state)
    elif isinstance(live, random.Random):
        live.setstate(state)
    elif hasattr(live, "bit_generator"):
        live.bit_generator.state = state
    else:
        live.set_state(state)
