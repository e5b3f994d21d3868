"""Single fields of typed JSON, each of the type that it must have."""

from __future__ import annotations

import base64
from typing import Any


class Malformed(Exception):
    """The JSON is not what `encode` writes."""


def exactly(value: Any, *kinds: type) -> Any:
    """The value, of one of these types and no other."""
    if type(value) not in kinds:
        raise Malformed(
            f"{type(value).__name__} where {' or '.join(kind.__name__ for kind in kinds)} belongs"
        )
    return value


def int64(value: Any) -> int:
    """The integer, of 64 bits: a larger one is written in hexadecimal."""
    if not -(2**63) <= exactly(value, int) < 2**63:
        raise Malformed("an integer of more than 64 bits stands as a plain number")
    return int(value)


def unbase64(raw: dict[str, Any]) -> bytes:
    return base64.b64decode(exactly(raw["base64"], str), validate=True)
