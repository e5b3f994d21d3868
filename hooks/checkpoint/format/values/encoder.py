"""Encoder of values that are not tensors, as typed JSON: a decoded value has the same value and type.

spotguard reads and writes no pickle (law 7), so a checkpoint can never run code. `None`, booleans, 64-bit integers,
finite floats, strings, lists and string-keyed dicts are themselves in JSON. Everything else is an object whose "$"
names its type: `{"$":"tuple","items":[…]}`. A tensor is `{"$":"tensor","name":…}`, and its bytes are stored
elsewhere.

Some values would not come back exactly: functions, instances of user classes, subclasses of plain types, quantized
arrays. The encoder refuses them with a `StateError` that names the path, at `register` and not at the notice. One that comes later
is left out of each save, and an `UnsavedValue` is in its place.
Shared references are not kept: a list that is referenced twice comes back as two equal lists.

`foreign` does the same for values of numpy and torch. Encoding imports neither library.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .....providers.errors import StateError
from .foreign import encode_foreign
from .placeholders import SavedObject

if TYPE_CHECKING:
    import torch

    TakeTensor = Callable[[torch.Tensor], str]

#: Deepest nesting of containers. State dicts have five levels; a list that contains itself has no end.
MAX_DEPTH = 64

#: Allowed factories of a defaultdict, by name; any other could be code.
FACTORIES: dict[str, Callable[[], Any]] = {
    factory.__name__: factory
    for factory in (
        list,
        dict,
        set,
        frozenset,
        tuple,
        int,
        float,
        str,
        bytes,
        bool,
        OrderedDict,
        Counter,
        deque,
    )
}

_ADVICE = "register plain values (numbers, strings, lists, dicts, tensors), or give it state_dict() and load_state_dict()"


def encode(value: Any, take_tensor: TakeTensor, path: str = "", left_out: list[str] | None = None) -> Any:
    """Return the value as JSON.

    Args:
        value: the value to encode; `encode` does not change it, and keeps no reference to it.
        take_tensor: called for each tensor; returns the name that stands for it.
        path: place of the value, for errors, such as "scheduler".
        left_out: receives the path and the type of each part that would not come back, which is then left out. None: it is refused.

    Raises:
        StateError: a part would not come back with its value and type.
    """
    return Encoder(take_tensor, left_out).encode(value, path)


def refusal(value: Any, path: str, advice: str = _ADVICE) -> StateError:
    """Return the error for a value that would not come back exactly."""
    kind = type(value)
    if advice is _ADVICE and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict"):
        advice = "register it by itself, under a name of its own"
    name = type_name(kind)
    article = "an" if name[:1].lower() in "aeiou" else "a"
    base = next((each for each in kind.__mro__[1:-1] if each in _CONTAINERS or each in _SINGLE), None)
    base = base or next((each for each in kind.__mro__[1:-1] if each in (int, float, str)), None)
    detail = f", a subclass of {base.__name__} that would come back as another type" if base else ""
    return StateError(
        f"{path or 'the value'} is {article} {name}{detail}, which cannot be saved; {advice} [SG401]"
    )


def type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def unsaved(kind: type) -> Any:
    """Return the JSON that stands for a value that is left out."""
    return {"$": "unsaved", "type": type_name(kind)}


def _is_unsaved(key: Any) -> bool:
    return type(key) is dict and key["$"] == "unsaved"


class Encoder:
    """One pass through a value: hands out its tensors, and tracks the containers around the current value."""

    #: Used by `foreign`, for values of numpy and torch.
    refusal = staticmethod(refusal)

    def __init__(self, take_tensor: TakeTensor, left_out: list[str] | None = None) -> None:
        self.take_tensor = take_tensor
        self._left_out = left_out
        self._inside: set[int] = set()

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is int or kind is float:
            return _scalar(value, kind)
        if self._left_out is None:
            return self._whole(value, path)
        try:
            return self._whole(value, path)
        except StateError:
            self._left_out.append(f"{path}: {type_name(kind)}")
            return unsaved(kind)

    def _whole(self, value: Any, path: str) -> Any:
        kind = type(value)
        if (write := _SINGLE.get(kind)) is not None:
            return write(value, path)
        if (container := _CONTAINERS.get(kind)) is not None:
            return self._container(value, path, container)
        if (encoded := encode_foreign(value, path, self)) is not None:
            return encoded
        raise refusal(value, path)

    def _container(self, value: Any, path: str, write: Callable[[Encoder, Any, str], Any]) -> Any:
        if id(value) in self._inside:
            raise StateError(
                f"{path or 'the value'} is a {type(value).__name__} that contains itself, which cannot be saved; break "
                "the cycle"
            )
        if len(self._inside) >= MAX_DEPTH:
            raise StateError(
                f"{path[:200] or 'the value'} is nested deeper than {MAX_DEPTH} levels; flatten it"
            )
        self._inside.add(id(value))
        try:
            return write(self, value, path)
        finally:
            self._inside.discard(id(value))

    def items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.encode(value, f"{path}[{index}]") for index, value in enumerate(values)]

    def pairs(self, values: dict[Any, Any], path: str) -> list[Any]:
        keys = [self.key(bare, f"{path} key {short(bare)}") for bare in values]
        return [
            [key, None if _is_unsaved(key) else self.encode(value, f"{path}[{short(bare)}]")]
            for key, (bare, value) in zip(keys, values.items(), strict=True)
        ]

    def key(self, value: Any, path: str) -> Any:
        """Return a key of a dict, or an element of a set, as JSON. It is left out as a whole."""
        left_out, self._left_out = self._left_out, None
        try:
            return self.encode(value, path)
        except StateError:
            if left_out is None:
                raise
            left_out.append(f"{path}: {type_name(type(value))}")
            return unsaved(type(value))
        finally:
            self._left_out = left_out


def _scalar(value: Any, kind: type) -> Any:
    if kind is int:
        # Beyond 64 bits other JSON readers lose digits, and Python's own stops at 4300 digits.
        return value if -(2**63) <= value < 2**63 else {"$": "int", "hex": hex(value)}
    if kind is float and not math.isfinite(value):
        return {"$": "float", "bits": struct.pack(">d", value).hex()}  # keeps a NaN's payload too
    if kind is str and not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        # Two lone surrogates in a row would come back from JSON as one character.
        return {"$": "str", "units": value.encode("utf-32-be", "surrogatepass").hex()}
    return value


def _dict(encoder: Encoder, value: dict[Any, Any], path: str) -> Any:
    if "$" in value or not all(type(key) is str and _scalar(key, str) is key for key in value):
        return {"$": "dict", "items": encoder.pairs(value, path)}
    return {key: encoder.encode(each, f"{path}.{key}" if path else key) for key, each in value.items()}


def _set(encoder: Encoder, value: Iterable[Any], path: str) -> list[Any]:
    # Sorted as text: equal sets give equal bytes under every hash seed.
    return sorted((encoder.key(each, f"{path} element {short(each)}") for each in value), key=json.dumps)


def _defaultdict(encoder: Encoder, value: defaultdict[Any, Any], path: str) -> Any:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if factory is not None and FACTORIES.get(str(name)) is not factory:
        raise refusal(factory, f"{path}.default_factory", f"use one of {', '.join(FACTORIES)}")
    return {"$": "defaultdict", "factory": name, "items": encoder.pairs(value, path)}


_CONTAINERS: dict[type, Callable[[Encoder, Any, str], Any]] = {
    list: lambda encoder, value, path: encoder.items(value, path),
    dict: _dict,
    tuple: lambda encoder, value, path: {"$": "tuple", "items": encoder.items(value, path)},
    set: lambda encoder, value, path: {"$": "set", "items": _set(encoder, value, path)},
    frozenset: lambda encoder, value, path: {"$": "frozenset", "items": _set(encoder, value, path)},
    OrderedDict: lambda encoder, value, path: {"$": "OrderedDict", "items": encoder.pairs(value, path)},
    Counter: lambda encoder, value, path: {"$": "Counter", "items": encoder.pairs(value, path)},
    defaultdict: _defaultdict,
    deque: lambda encoder, value, path: {
        "$": "deque",
        "maxlen": value.maxlen,
        "items": encoder.items(value, path),
    },
    SavedObject: lambda encoder, value, path: {
        "$": "object",
        "kind": value.kind,
        "class": value.cls,
        "value": encoder.encode(value.value, path),
    },
    slice: lambda encoder, value, path: {
        "$": "slice",
        "items": encoder.items((value.start, value.stop, value.step), path),
    },
}


def _datetime(value: datetime | time, path: str) -> Any:
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        raise refusal(zone, f"{path}.tzinfo", "use a datetime in UTC")
    word = "datetime" if type(value) is datetime else "time"
    offset = zone and _timedelta(zone.utcoffset(None))
    name = zone and zone.tzname(None)
    if zone is not None and timezone(zone.utcoffset(None)).tzname(None) != name:
        # The zone has a name of its own.
        raise refusal(zone, f"{path}.tzinfo", "use a datetime in UTC")
    plain = value.replace(tzinfo=None, fold=0).isoformat()
    return {"$": word, "iso": plain, "fold": value.fold, "offset": offset}


def _timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _base64(word: str) -> Callable[[Any, str], Any]:
    return lambda value, path: {"$": word, "base64": base64.b64encode(value).decode()}


_SINGLE: dict[type, Callable[[Any, str], Any]] = {
    bytes: _base64("bytes"),
    bytearray: _base64("bytearray"),
    complex: lambda value, path: {
        "$": "complex",
        "parts": [_scalar(value.real, float), _scalar(value.imag, float)],
    },
    range: lambda value, path: {
        "$": "range",
        "items": [_scalar(part, int) for part in (value.start, value.stop, value.step)],
    },
    type(...): lambda value, path: {"$": "ellipsis"},
    date: lambda value, path: {"$": "date", "iso": value.isoformat()},
    datetime: _datetime,
    time: _datetime,
    timedelta: lambda value, path: {"$": "timedelta", "parts": _timedelta(value)},
    Decimal: lambda value, path: {"$": "Decimal", "text": str(value)},
    Fraction: lambda value, path: {"$": "Fraction", "parts": [hex(value.numerator), hex(value.denominator)]},
}


def short(key: Any) -> str:
    """Return a key or an element as a path shows it.

    The text is never the `repr` of a user's class, which could run its code.
    """
    if type(key) in (str, int, float, bool, bytes) or key is None:
        text = repr(key)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"<{type(key).__name__}>"
