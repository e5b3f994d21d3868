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
    """Return "" if the values have equal value and type, all the way down, else the path of the first difference.

    The comparison is stricter than `==`. True differs from 1, and 0.0 from -0.0. A NaN equals the same NaN, and the
    order of a dict counts. (The order of a set does not.)
    """
    if type(one) is not type(other):
        return path or " itself"
    if isinstance(one, _SEQUENCES):
        if len(one) != len(other) or getattr(one, "maxlen", None) != getattr(other, "maxlen", None):
            return path or " itself"
        pairs = enumerate(zip(one, other, strict=True))
        return next((difference for i, (a, b) in pairs if (difference := same(a, b, f"{path}[{i}]"))), "")
    if isinstance(one, _DICTS):
        return _same_dict(one, other, path)
    if isinstance(one, SavedObject):
        if (one.kind, one.cls) != (other.kind, other.cls):
            return path or " itself"
        return same(one.value, other.value, path)
    return "" if _same_leaf(one, other) else path or " itself"


def _same_dict(one: dict[Any, Any], other: dict[Any, Any], path: str) -> str:
    if same(list(one), list(other)) or getattr(one, "default_factory", None) != getattr(
        other, "default_factory", None
    ):
        return path or " itself"
    # Compare in order, not by key: a lookup finds a NaN only by its identity.
    for (key, value), its in zip(one.items(), other.values(), strict=True):
        if difference := same(value, its, f"{path}[{short(key)}]"):
            return difference
    return ""


def _same_leaf(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return _same_leaf(one.real, other.real) and _same_leaf(one.imag, other.imag)
    if isinstance(one, slice):
        return not same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, (set, frozenset)):
        return _same_set(one, other)
    if (torch := sys.modules.get("torch")) is not None and isinstance(one, torch.Tensor):
        return _same_tensor(torch, one, other)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return bool(
            one.dtype == other.dtype
            and one.dtype.char == other.dtype.char
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    return bool(one == other)


def _same_set(one: set[Any] | frozenset[Any], other: set[Any] | frozenset[Any]) -> bool:
    if len(one) != len(other):
        return False
    known = {value: value for value in other}
    strange = []
    for value in one:
        if value not in known:
            strange.append(value)  # a NaN, or a value that contains one
        elif same(value, known.pop(value)):
            return False
    for value in strange:
        twin = next((each for each in known.values() if not same(value, each)), None)
        if twin is None:
            return False
        del known[twin]
    return True


def _same_tensor(torch: Any, one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.requires_grad != other.requires_grad:
        return False
    a, b = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return bool(torch.equal(a, b))
