"""JSON objects with typed fields: messages of the socket, and values that ranks exchange.

Every field is checked, because all ranks may read what one rank has written, and any process may write to the socket. Only JSON
crosses: an impostor can send wrong values, never code.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeVar

from ...providers.errors import ProtocolError

T = TypeVar("T")

#: JSON types that each annotation allows.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "dict[str, Any]": (dict,),
}
#: Largest integer: no count here is larger, and floats are exact only up to this one.
_MOST = 2**53


def encode(value: dict[str, Any]) -> str:
    """Return ASCII JSON; equal values give equal text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def decode(raw: bytes | str, where: str = "a value of a rank") -> dict[str, Any]:
    """Return the JSON object.

    Args:
        where: for the error: "a frame of 20 bytes".

    Raises:
        ProtocolError: `raw` is not a JSON object, or holds a number that is none in JSON.
    """
    try:
        body = json.loads(raw, parse_constant=_no_constants, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} is not JSON") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"{where} holds {type(body).__name__}, not an object")
    return body


def _no_constants(word: str) -> float:
    raise ProtocolError(f"{word} is not a JSON number")


def _finite(word: str) -> float:
    """Return the number, which must be finite: JSON has no infinity, but Python parses 1e999 as one."""
    value = float(word)
    if not math.isfinite(value):
        raise ProtocolError(f"{word[:20]} is out of range")
    return value


def build(cls: type[T], body: dict[str, Any], name: str = "") -> T:
    """Return the dataclass made from its fields. Other fields are skipped.

    Args:
        name: for the error; the class's own if empty.

    Raises:
        ProtocolError: a field is missing, or has another type.
    """
    name = name or cls.__name__
    values: dict[str, Any] = {}
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        if each.name not in body:
            raise ProtocolError(f"{name} lacks {each.name}")
        value: Any = body[each.name]
        allowed = _TYPES.get(str(each.type))
        if allowed is None:
            values[each.name] = value  # the caller has parsed it before
            continue
        if isinstance(value, int) and abs(value) > _MOST:
            raise ProtocolError(f"{name}.{each.name} is out of range")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ProtocolError(f"{name}.{each.name} must be {each.type}, not {type(value).__name__}")
        values[each.name] = float(value) if "float" in str(each.type) and isinstance(value, int) else value
    return cls(**values)
