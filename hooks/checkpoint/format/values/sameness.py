"""Comparison of two values down to bit and type, by which `register` proves that a value survives a save."""

from __future__ import annotations

import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

from .encoder import short
from .placeholders import SavedObject

_SEQUENCES = (list, tuple, deque)
_DICTS = (dict, OrderedDict, defaultdict, Counter)


def same(one: Any, other: Any, path: str = "") -> str:
    """Return "" if the values have equal value and type, all the way down, else the path of the first difference."""
    found = difference(one, other, path)
    return "" if found is None else found[0] or " itself"


def difference(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first path at which two values differ, with what is there in each; None if they have equal value and type.

    The comparison is stricter than `==`. True differs from 1, and 0.0 from -0.0. A NaN equals the same NaN, and the
    order of a dict counts. (The order of a set does not.)
    """
    here = path, one, other
    if type(one) is not type(other):
        return here
    if isinstance(one, _SEQUENCES):
        if len(one) != len(other) or getattr(one, "maxlen", None) != getattr(other, "maxlen", None):
            return here
        if {*map(type, one), *map(type, other)} == {int} and one == other:
            return None  # at once: a generator's state has 625 numbers
        below = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    elif isinstance(one, _DICTS):
        factories = (getattr(each, "default_factory", None) for each in (one, other))
        if same(list(one), list(other)) or next(factories) != next(factories):
            return here
        # Compare in order, not by key: a lookup finds a NaN only by its identity.
        both = zip(one.items(), other.values(), strict=True)
        below = (difference(value, its, f"{path}[{short(key)}]") for (key, value), its in both)
    elif isinstance(one, SavedObject):
        if (one.kind, one.cls) != (other.kind, other.cls):
            return here
        return difference(one.value, other.value, path)
    else:
        return None if _same_leaf(one, other) else here
    return next((found for found in below if found is not None), None)


def _same_leaf(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if (torch := sys.modules.get("torch")) is not None and isinstance(one, torch.Tensor):
        return _same_tensor(torch, one, other)
    if isinstance(one, slice):
        return not same([one.start, one.stop, one.step], [other.start, other.stop, other.step])
    return bool(_form(one) == _form(other))


def _form(value: Any) -> Any:
    """Return what is equal for two values of equal value and type, whatever they hold."""
    kind = type(value)
    if isinstance(value, complex):
        return kind, _form(value.real), _form(value.imag)
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if isinstance(value, tuple):
        return kind, *map(_form, value)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(Counter(map(_form, value)).items())  # a NaN may be in it twice
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return kind, value.dtype, value.dtype.char, value.shape, value.tobytes()
    return kind, value


def _same_tensor(torch: Any, one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.requires_grad != other.requires_grad:
        return False
    a, b = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(a, b))
