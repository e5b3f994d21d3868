"""Objects of classes inside a registered dict: what a checkpoint keeps of each, and how a live one takes it back.

The class is always the live object's own. So a checkpoint names no code to call, and an object that is missing at a restore cannot
be made.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import random
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

from ...checkpoint.format.values.placeholders import SavedObject

#: Dicts that typed JSON has a form for.
_DICTS = (OrderedDict, defaultdict, Counter, dict)
#: Kinds of numpy's, by their names in `numpy.random`.
_NUMPYS = ("Generator", "BitGenerator", "RandomState", "SeedSequence")
#: An outer variable that has no value yet.
_UNBOUND = types.CellType()
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
    if not is_generator(value) or {*getattr(value, "__dict__", ())} - {"gauss_next"}:
        return None
    state = generator_state(value)
    return None if state is None else SavedObject("generator", name, state)


def _has_other_slots(value: Any) -> bool:
    """Return whether a dataclass instance has attributes that are neither fields nor in its `__dict__`."""
    fields = {field.name for field in dataclasses.fields(value)}
    return not {*_slots(type(value))} <= fields | {"__dict__", "__weakref__"}


def _slots(kind: type) -> Iterator[str]:
    for cls in kind.__mro__:
        slots = vars(cls).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def attributes(value: object) -> dict[str, Any]:
    """Return what an object holds in its `__dict__` and its slots. None of its code runs."""
    kind = type(value)
    own = (name for name in _slots(kind) if type(getattr(kind, name, None)) is types.MemberDescriptorType)
    return {name: getattr(value, name) for name in own if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )


def outer_variables(function: types.FunctionType) -> dict[str, Any]:
    """Return the values of a function's outer variables, by name; none of what is not bound yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if cell != _UNBOUND}


def is_array(value: object, *, scalars: bool = False) -> bool:
    """Return whether a value is a numpy array, or one of numpy's numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.ndarray, numpy.generic) if scalars else numpy.ndarray
    )


def is_generator(value: object) -> bool:
    """Return whether the value is a random number generator, or what makes new ones: python's, torch's or numpy's."""
    # By its type: a proxy's `__class__` is code of its own. A search asks for thousands.
    return issubclass(type(value), _generators("numpy.random" in sys.modules))


@functools.lru_cache(maxsize=2)
def _generators(with_numpy: bool) -> tuple[type, ...]:
    numpys = (getattr(sys.modules["numpy"].random, name) for name in _NUMPYS if with_numpy)
    return torch.Generator, random.Random, *numpys


def generator_state(value: Any) -> Any:
    """Return the state of a random number generator; None if it has none that can be set."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if hasattr(value, "set_state"):
        return value.get_state(legacy=False)
    if hasattr(value, "generate_state"):
        return value.state
    bits = getattr(value, "bit_generator", value)
    return {"bits": bits.state, "seeds": getattr(getattr(bits, "seed_seq", None), "state", None)}


def set_generator(live: Any, state: Any) -> None:
    """Set the state that `generator_state` returned."""
    if isinstance(live, random.Random):
        live.setstate(state)
    elif hasattr(live, "set_state"):
        live.set_state(state)
    elif hasattr(live, "generate_state"):
        if state["pool_size"] != live.pool_size:
            raise ValueError(
                f"the saved pool has {state['pool_size']} words, and the one here {live.pool_size}"
            )
        # numpy has no setter for the count of children, from which `spawn` makes the next one.
        sys.modules["numpy"].random.SeedSequence.__init__(live, **state)
    else:
        bits = getattr(live, "bit_generator", live)
        bits.state = state["bits"]
        if state["seeds"] is not None and hasattr(seeds := getattr(bits, "seed_seq", None), "state"):
            set_generator(seeds, state["seeds"])


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
    """Return whether a value takes new values itself. Any other one gives its place to another."""
    if isinstance(live, (dict, list, deque, set, bytearray)):
        return True
    if isinstance(live, (enum.Enum, tuple)) or saved_object(live) is None:
        return False
    parameters = getattr(live, "__dataclass_params__", None)
    return parameters is None or not parameters.frozen


def another(live: Any, kind: str, value: Any) -> Any:
    """Return another object of the live one's class, with these values."""
    if kind == "enum":
        return type(live)[value]
    if kind == "namedtuple":
        return tuple.__new__(type(live), value)
    made = copy.deepcopy(live) if kind == "generator" else copy.copy(live)
    fill(made, kind, value)
    return made


def fill(live: Any, kind: str, value: Any) -> None:
    """Give a live object its values."""
    if kind == "generator":
        set_generator(live, value)
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
