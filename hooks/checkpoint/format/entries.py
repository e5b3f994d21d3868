"""Objects of a manifest to JSON and back, and checks of single fields (`columns` has the tensors)."""

from __future__ import annotations

import json
from math import prod
from typing import Any, TypeVar

from ....providers.text import printable
from .dtypes import ITEMSIZE
from .keys import CheckpointName, parse_object_name
from .manifest import ObjectEntry

_MAX_DIMS = 64  # torch's own limit
_MAX_NAME = 4096
#: Levels of what is for people; a record of spotguard has six.
_MAX_DEPTH = 32


def objects_out(objects: tuple[ObjectEntry, ...]) -> list[dict[str, Any]]:
    """Return the JSON form that `objects_in` takes."""
    raw = []
    for entry in objects:
        fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
        if not entry.checkpoint:
            del fields["checkpoint"]
        raw.append(fields)
    return raw


def objects_in(raw: list[Any], name: CheckpointName, rank: int, world: int) -> tuple[ObjectEntry, ...]:
    """Return the objects that a manifest of this rank and checkpoint names, each in an allowed place."""
    entries: list[ObjectEntry] = []
    seen: set[tuple[str, str]] = set()
    for index, fields in enumerate(raw):
        if type(fields) is not dict:
            raise InvalidField(f"objects[{index}] is not an object")
        size = integer(fields, "size", 0)
        entry = ObjectEntry(
            name=text(fields, "name", 64),
            size=size,
            header=integer(fields, "header", 0, size),
            header_crc32=integer(fields, "header_crc32", 0, 2**32 - 1),
            checkpoint=text(fields, "checkpoint", 64) if "checkpoint" in fields else "",
        )
        _confine(entry, name, rank, world)
        if (entry.checkpoint, entry.name) in seen:
            raise InvalidField(f"object {entry.name!r} is listed twice")
        seen.add((entry.checkpoint, entry.name))
        entries.append(entry)
    return tuple(entries)


def _confine(entry: ObjectEntry, name: CheckpointName, rank: int, world: int) -> None:
    """Refuse an object outside this rank's directory, except in an earlier checkpoint of this attempt.

    No path leads anywhere else.
    """
    place = parse_object_name(entry.name)
    if place is None:
        raise InvalidField(f"object name {entry.name!r} is not a name that spotguard gives")
    if not entry.checkpoint:
        if place[:2] != (rank, world):
            raise InvalidField(f"object {entry.name!r} is not in the directory of rank {rank} of {world}")
        return
    other = CheckpointName.parse(entry.checkpoint)
    if other is None:
        raise InvalidField(f"checkpoint name {entry.checkpoint!r} is not a name that spotguard gives")
    if other.attempt != name.attempt or not other < name:
        raise InvalidField(
            f"object {entry.name!r} refers to {entry.checkpoint}, which is not an earlier checkpoint of "
            "this attempt"
        )


def check_name(name: Any, index: int) -> None:
    """Refuse what is no name of a tensor."""
    if type(name) is not str or not 0 < len(name) <= _MAX_NAME:
        raise InvalidField(f"tensors[{index}] has no usable name")


def itemsize_of(name: str, dtype: Any, stored: Any) -> int:
    """Return the bytes of one element as stored; refuse a dtype that is unknown to this version."""
    try:
        if dtype in ITEMSIZE and type(stored) is str:
            return ITEMSIZE[stored or dtype]
    except (TypeError, KeyError):
        pass  # not a string, or not a dtype: refused below like any unknown one
    raise InvalidField(f"tensor {name!r} has dtype {str(stored or dtype)[:40]!r}, unknown to this version")


def check_shape(name: str, shape: Any, itemsize: int) -> None:
    """Refuse what is no shape of a tensor that can exist."""
    if type(shape) not in (list, tuple):
        raise InvalidField(f"tensor {name!r} has no list of sizes")
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_SIZE:
            raise InvalidField(f"tensor {name!r} has a dimension of {str(size)[:40]}")
    # A size of 0 hides no others: torch computes the strides of all of them.
    if len(shape) > _MAX_DIMS or prod([size or 1 for size in shape]) * itemsize > MAX_SIZE:
        raise InvalidField(f"tensor {name!r} is too large to exist")


# Checks for single fields of a JSON object from a store. `codec` and `entries` use them.

#: Largest number of bytes or elements: the maximum of a signed 64-bit size.
MAX_SIZE = 2**63 - 1

#: Wall seconds at the end of the year 9998. Python's dates end with 9999, so every time zone can show an earlier
#: time.
_LAST_SECOND = 253_370_764_800

T = TypeVar("T")


class InvalidField(Exception):
    """Error for a value that is not valid. `codec` turns it into a `CheckpointError` that names the key."""


#: Bytes that JSON takes at most (Python 3.11): for each letter with the JSON itself, or with an escape that makes all letters of a text
#: wide; for an object, a list, a place in one, and a value of more than one letter.
_LETTER, _WIDE, _OBJECT, _LIST, _PLACE, _VALUE = 3, 6, 200, 96, 9, 56


def parsed_bytes(raw: bytes) -> int:
    """Return how much memory JSON takes at most while it is parsed. It counts letters, and parses nothing."""
    objects, lists, values = raw.count(b"{"), raw.count(b"["), raw.count(b",") + raw.count(b":")
    # A value of one letter is an object that Python has anyway, so each other one has a letter more.
    more = len(raw) - 2 * (objects + lists + values)
    letters = (_WIDE if b"\\u" in raw else _LETTER) * len(raw)
    return letters + _OBJECT * objects + _LIST * lists + _PLACE * values + _VALUE * max(0, min(values, more))


def parsed(data: bytes, what: str) -> Any:
    """Return the JSON value in a file or in a part of it, which `what` names for the error."""
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"the content of {what} is not JSON") from error


def _no_constant(constant: str) -> float:
    raise InvalidField(f"{constant} is not a JSON number")


def record(data: bytes) -> dict[str, Any]:
    """Return a record that people read; {} if it is damaged."""
    try:
        value = shown(json.loads(data))
    except (ValueError, RecursionError):
        return {}
    return value if type(value) is dict else {}


def shown(value: Any, depth: int = 0) -> Any:
    """Return JSON for people: blanks for characters that a terminal obeys or that reorder others, and None for what is nested deep."""
    if type(value) is str:
        return printable(value, but="\n\t")
    if type(value) not in (dict, list):
        return value
    if depth > _MAX_DEPTH:
        return None
    if type(value) is list:
        return [shown(each, depth + 1) for each in value]
    return {printable(name): shown(each, depth + 1) for name, each in value.items()}


def typed(raw: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return the field, which must have exactly this type: True does not count as 1."""
    value = raw.get(name)
    if type(value) is not kind:
        raise InvalidField(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def integer(raw: dict[str, Any], name: str, low: int, high: int = MAX_SIZE) -> int:
    value = typed(raw, name, int)
    if not low <= value <= high:
        raise InvalidField(f"{name} is {value}, expected {low} to {high}")
    return value


def text(raw: dict[str, Any], name: str, limit: int) -> str:
    value = typed(raw, name, str)
    if len(value) > limit:
        raise InvalidField(f"{name} has {len(value)} characters, at most {limit} are allowed")
    return value


def word(raw: dict[str, Any], name: str, words: tuple[T, ...]) -> T:
    """Return the field, which must be one of a closed set."""
    value = raw.get(name)
    for each in words:
        if value == each:
            return each
    raise InvalidField(f"{name} is {str(value)[:40]!r}, expected one of {', '.join(map(str, words))}")


def seconds(raw: dict[str, Any], name: str) -> float:
    """Return a wall-clock time: finite, and within the years that Python can show."""
    value = raw.get(name)
    if type(value) not in (int, float) or not 0 <= value < _LAST_SECOND:  # type: ignore[operator]
        raise InvalidField(f"{name} is {str(value)[:40]!r}, not a time")
    return float(value)  # type: ignore[arg-type]
