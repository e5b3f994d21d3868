"""Values that ranks exchange: JSON objects with a few typed fields.

Every field is checked, because all ranks may read what one rank has written.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeVar

from ...providers.errors import ProtocolError

#: Increase this number when a value on the wire, or the order of messages, changes meaning. Ranks of different
#: versions refuse each other when they meet.
VERSION = 1

T = TypeVar("T")

#: JSON types that each annotation allows.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}


def encode(value: dict[str, Any]) -> str:
    """Return ASCII JSON; equal values give equal text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def decode(raw: bytes | str) -> dict[str, Any]:
    """Return the JSON object.

    Raises:
        ProtocolError: `raw` is not a JSON object.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{raw[:40]!r} in the job's store is not JSON") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"{raw[:40]!r} in the job's store is not an object")
    return body


def build(cls: type[T], body: dict[str, Any]) -> T:
    """Return the dataclass made from its fields. Other fields are skipped.

    Raises:
        ProtocolError: a field is missing, or has another type.
    """
    values: dict[str, Any] = {}
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        value: Any = body.get(each.name)
        allowed = _TYPES.get(str(each.type))
        if allowed is None:
            values[each.name] = value  # the caller has parsed it before
            continue
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ProtocolError(f"{cls.__name__}.{each.name} must be {each.type}, not {str(value)[:40]!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ProtocolError(f"{cls.__name__}.{each.name} is out of range")
        values[each.name] = float(value) if "float" in str(each.type) and isinstance(value, int) else value
    return cls(**values)


def integers(body: dict[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of integers as a tuple.

    Raises:
        ProtocolError: the field is something else.
    """
    value = body.get(name)
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        raise ProtocolError(f"{name} must be a list of integers, not {str(value)[:40]!r}")
    return tuple(value)
