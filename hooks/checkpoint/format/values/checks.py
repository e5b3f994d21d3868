"""Checks for single fields of typed JSON: each must have the right type."""

from __future__ import annotations

import base64
from typing import Any


class Malformed(Exception):
    """Error for JSON that `encode` does not write."""


def exactly(value: Any, *kinds: type) -> Any:
    """Return the value, which must have exactly one of these types."""
    if type(value) not in kinds:
        raise Malformed(
            f"{type(value).__name__} where {' or '.join(kind.__name__ for kind in kinds)} belongs"
        )
    return value


def int64(value: Any) -> int:
    """Return the integer, which must fit 64 bits: `encode` writes a larger one in hexadecimal."""
    if not -(2**63) <= exactly(value, int) < 2**63:
        raise Malformed("an integer of more than 64 bits stands as a plain number")
    return int(value)


def unbase64(raw: dict[str, Any]) -> bytes:
    return base64.b64decode(exactly(raw["base64"], str), validate=True)
