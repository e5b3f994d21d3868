"""Single fields of a JSON object from a store, checked one by one: the ground that `codec` and `entries` stand on."""

from __future__ import annotations

from typing import Any, TypeVar

#: Bytes and elements: what a signed 64-bit size can say.
MAX_SIZE = 2**63 - 1

#: Wall seconds at the end of the year 9998: what Python's dates, which end with 9999, can show in any zone.
_LAST_SECOND = 253_370_764_800

T = TypeVar("T")


class Invalid(Exception):
    """A value is not what it must be. `codec` turns it into a `CheckpointError` that names the key."""


def typed(raw: dict[str, Any], name: str, kind: type[T]) -> T:
    """The field, of exactly this type: True is no 1 here."""
    value = raw.get(name)
    if type(value) is not kind:
        raise Invalid(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def integer(raw: dict[str, Any], name: str, low: int, high: int = MAX_SIZE) -> int:
    value = typed(raw, name, int)
    if not low <= value <= high:
        raise Invalid(f"{name} is {value}, not within {low} to {high}")
    return value


def text(raw: dict[str, Any], name: str, limit: int) -> str:
    value = typed(raw, name, str)
    if len(value) > limit:
        raise Invalid(f"{name} has {len(value)} characters, at most {limit} are allowed")
    return value


def word(raw: dict[str, Any], name: str, words: tuple[T, ...]) -> T:
    """The field, one of a closed set."""
    value = raw.get(name)
    for each in words:
        if value == each:
            return each
    raise Invalid(f"{name} is {str(value)[:40]!r}, not one of {', '.join(map(str, words))}")


def seconds(raw: dict[str, Any], name: str) -> float:
    """A wall-clock time: finite, and not from another age of the world."""
    value = raw.get(name)
    if type(value) not in (int, float) or not 0 <= value < _LAST_SECOND:  # type: ignore[operator]
        raise Invalid(f"{name} is {str(value)[:40]!r}, not a time")
    return float(value)  # type: ignore[arg-type]
