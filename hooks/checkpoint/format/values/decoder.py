"""Decoder from typed JSON to values: it handles any JSON, and never runs code.

Each "$" word has one reader below, and each reader makes one builtin type. Any JSON that differs from the form of
`encoder` is a `CheckpointError`, because anybody who can write to the store may have written the bytes.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .....providers.errors import CheckpointError, StateError
from .encoder import FACTORIES, MAX_DEPTH
from .foreign_readers import FOREIGN_READERS, Malformed, TensorOutline, exactly, int64, unbase64
from .placeholders import KINDS, SavedObject, UnsavedValue

if TYPE_CHECKING:
    import torch

    GiveTensor = Callable[[str], torch.Tensor]

#: Limit of nesting in JSON. A container takes at most three levels of JSON: the object, its items, a pair.
_MAX_JSON_DEPTH = 3 * MAX_DEPTH + 8
_HEX = re.compile(r"-?0x[0-9a-f]{1,1000000}", re.ASCII)


def decode(raw: Any, give_tensor: GiveTensor) -> Any:
    """Return the value that was passed to `encode`.

    Args:
        raw: the result of `encode`, through JSON or not.
        give_tensor: returns the tensor of a name; its own errors pass through.

    Raises:
        CheckpointError: `encode` writes no such JSON.
        StateError: the value needs a library, or a part of it, that is not here.
    """
    return _read(Decoder(give_tensor), raw)


def outline(raw: Any, give_tensor: Callable[[str], TensorOutline]) -> Any:
    """Return the value with outlines in place of what is numpy's or torch's; neither is imported.

    It is read exactly if `decode` reads it, where the libraries are.

    Raises:
        CheckpointError: `encode` writes no such JSON.
    """
    return _read(Decoder(give_tensor, outlines=True), raw)


def _read(decoder: Decoder, raw: Any) -> Any:
    try:
        return decoder.decode(raw, 0)
    except Malformed as error:
        raise CheckpointError(f"the saved state cannot be read: {error}") from error
    except RecursionError as error:
        raise CheckpointError("the saved state cannot be read: it is nested too deep") from error


class Decoder:
    """One pass through JSON, with access to the tensors.

    Args:
        give_tensor: returns the tensor, or the outline, of a name.
        outlines: whether values of numpy and torch become outlines.
    """

    def __init__(self, give_tensor: Callable[[str], Any], *, outlines: bool = False) -> None:
        self.give_tensor = give_tensor
        self._outlines = outlines

    def decode(self, raw: Any, depth: int) -> Any:
        kind = type(raw)
        if kind is int:
            return int64(raw)
        if raw is None or kind is bool or kind is str:
            return raw
        if kind is float:
            if raw - raw != 0.0:
                raise Malformed(f"{raw} is written as a plain number")
            return raw
        if depth > _MAX_JSON_DEPTH:
            raise Malformed(f"nested deeper than {_MAX_JSON_DEPTH} levels")
        if kind is list:
            return self._list(raw, depth)
        if kind is not dict:
            raise Malformed(f"{kind.__name__} is not JSON")
        if "$" in raw:
            return self._typed(raw, depth + 1)
        return {_key(key): self.decode(each, depth + 1) for key, each in raw.items()}

    def _typed(self, raw: dict[str, Any], depth: int) -> Any:
        word = raw["$"]
        read = _READERS.get(word) if type(word) is str else None
        foreign = FOREIGN_READERS.get(word) if read is None and type(word) is str else None
        if read is None and foreign is None:
            raise Malformed(f"type {str(word)[:40]!r} is unknown to this version")
        try:
            if foreign is not None:
                fields = foreign.parse(self, raw, depth)
                return (foreign.outline if self._outlines else foreign.make)(*fields)
            assert read is not None
            return read(self, raw, depth)
        except ImportError as error:
            # The checkpoint is not damaged, so falling back to an older one would not help.
            raise StateError(
                f"the saved state holds a {word}, but {error.name} is not installed here: install it"
            ) from error
        except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
            raise Malformed(f"an invalid {word} ({type(error).__name__}: {str(error)[:80]})") from error

    def _list(self, raw: list[Any], depth: int) -> list[Any]:
        if _is_plain(raw):
            return raw if self._outlines else raw[:]  # an outline is looked at, and not kept
        return [self.decode(each, depth + 1) for each in raw]

    def items(self, raw: dict[str, Any], depth: int) -> list[Any]:
        return self._list(exactly(raw["items"], list), depth)

    def pairs(self, raw: dict[str, Any], depth: int) -> list[tuple[Any, Any]]:
        decoded = []
        for pair in exactly(raw["items"], list):
            key, value = exactly(pair, list)
            decoded.append((self.decode(key, depth + 2), self.decode(value, depth + 2)))
        return decoded


def _is_plain(values: list[Any]) -> bool:
    """Return whether all elements are themselves in JSON, as far as one look at all of them tells.

    A prune proves the states of all ranks in the training process. A million integers of a sampler's order take 14 ms, and 235 ms
    one by one.
    """
    kind = type(values[0]) if values else None
    if kind is int:
        try:
            array("q", values)  # refuses all but integers of 64 bits, and booleans
        except (TypeError, OverflowError):
            return False
        return True
    if kind is float:
        return {*map(type, values)} == {float} and all(map(math.isfinite, values))
    return kind is str and {*map(type, values)} == {str}


def _key(key: Any) -> str:
    return str(exactly(key, str))


def _int(decoder: Decoder, raw: dict[str, Any], depth: int) -> int:
    return _hex(raw["hex"])


def _hex(text: Any) -> int:
    if _HEX.fullmatch(exactly(text, str)) is None:
        raise Malformed("an integer that is not hexadecimal")
    return int(text, 16)


def _float(decoder: Decoder, raw: dict[str, Any], depth: int) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(exactly(raw["bits"], str)))[0]
    return value


def _str(decoder: Decoder, raw: dict[str, Any], depth: int) -> str:
    return bytes.fromhex(exactly(raw["units"], str)).decode("utf-32-be", "surrogatepass")


def _ints(values: Any, count: int) -> list[int]:
    if len(exactly(values, list)) != count:
        raise Malformed(f"{len(values)} numbers where {count} are expected")
    return [exactly(value, int) for value in values]


def _range(decoder: Decoder, raw: dict[str, Any], depth: int) -> range:
    start, stop, step = (exactly(part, int) for part in decoder.items(raw, depth))
    return range(start, stop, step)


def _complex(decoder: Decoder, raw: dict[str, Any], depth: int) -> complex:
    real, imag = (exactly(decoder.decode(part, depth), float) for part in exactly(raw["parts"], list))
    return complex(real, imag)


def _unique(values: list[Any], made: set[Any] | frozenset[Any]) -> Any:
    if len(made) != len(values):
        raise Malformed("a set with an element twice")
    return made


def _mapping(pairs: list[tuple[Any, Any]], made: Any) -> Any:
    for key, value in pairs:
        if key in made:
            raise Malformed("a dict with a key twice")
        made[key] = value
    return made


def _defaultdict(decoder: Decoder, raw: dict[str, Any], depth: int) -> defaultdict[Any, Any]:
    name = raw["factory"]
    factory = None if name is None else FACTORIES[exactly(name, str)]
    made: defaultdict[Any, Any] = _mapping(decoder.pairs(raw, depth), defaultdict(factory))
    return made


def _deque(decoder: Decoder, raw: dict[str, Any], depth: int) -> deque[Any]:
    items, maxlen = decoder.items(raw, depth), exactly(raw["maxlen"], int, type(None))
    if maxlen is not None and len(items) > maxlen:
        raise Malformed(f"a deque of {len(items)} elements with a limit of {maxlen}")
    return deque(items, maxlen)


def _slice(decoder: Decoder, raw: dict[str, Any], depth: int) -> slice:
    start, stop, step = decoder.items(raw, depth)
    return slice(start, stop, step)


def _zone(raw: dict[str, Any]) -> timezone | None:
    if raw["offset"] is None:
        return None
    zone = timezone(_timedelta(raw["offset"]))
    return UTC if zone == UTC else zone


def _timedelta(parts: Any) -> timedelta:
    days, seconds, micros = _ints(parts, 3)
    return timedelta(days, seconds, micros)


def _datetime(decoder: Decoder, raw: dict[str, Any], depth: int) -> datetime:
    value = datetime.fromisoformat(exactly(raw["iso"], str))
    return value.replace(tzinfo=_zone(raw), fold=exactly(raw["fold"], int))


def _time(decoder: Decoder, raw: dict[str, Any], depth: int) -> time:
    value = time.fromisoformat(exactly(raw["iso"], str))
    return value.replace(tzinfo=_zone(raw), fold=exactly(raw["fold"], int))


def _decimal(decoder: Decoder, raw: dict[str, Any], depth: int) -> Decimal:
    try:
        return Decimal(exactly(raw["text"], str))
    except InvalidOperation as error:
        raise Malformed("a Decimal that is no number") from error


def _fraction(decoder: Decoder, raw: dict[str, Any], depth: int) -> Fraction:
    parts = exactly(raw["parts"], list)
    if len(parts) != 2 or (below := _hex(parts[1])) < 1:
        raise Malformed("a Fraction without its two parts")
    return Fraction(_hex(parts[0]), below)


def _class_name(text: Any) -> str:
    if not exactly(text, str).isprintable():
        raise Malformed(f"a class of the name {text[:40]!r}")
    return str(text)


def _object(decoder: Decoder, raw: dict[str, Any], depth: int) -> SavedObject:
    kind, cls = exactly(raw["kind"], str), _class_name(raw["class"])
    if kind not in KINDS:
        raise Malformed(f"an object of kind {kind[:40]!r}")
    return SavedObject(kind, cls, decoder.decode(raw["value"], depth))


_READERS: dict[str, Callable[[Decoder, dict[str, Any], int], Any]] = {
    "int": _int,
    "float": _float,
    "str": _str,
    "bytes": lambda decoder, raw, depth: unbase64(raw),
    "bytearray": lambda decoder, raw, depth: bytearray(unbase64(raw)),
    "tuple": lambda decoder, raw, depth: tuple(decoder.items(raw, depth)),
    "set": lambda decoder, raw, depth: _unique(items := decoder.items(raw, depth), set(items)),
    "frozenset": lambda decoder, raw, depth: _unique(items := decoder.items(raw, depth), frozenset(items)),
    "dict": lambda decoder, raw, depth: _mapping(decoder.pairs(raw, depth), {}),
    "OrderedDict": lambda decoder, raw, depth: _mapping(decoder.pairs(raw, depth), OrderedDict()),
    "Counter": lambda decoder, raw, depth: _mapping(decoder.pairs(raw, depth), Counter()),
    "defaultdict": _defaultdict,
    "deque": _deque,
    "slice": _slice,
    "range": _range,
    "complex": _complex,
    "ellipsis": lambda decoder, raw, depth: ...,
    "date": lambda decoder, raw, depth: date.fromisoformat(exactly(raw["iso"], str)),
    "datetime": _datetime,
    "time": _time,
    "timedelta": lambda decoder, raw, depth: _timedelta(raw["parts"]),
    "Decimal": _decimal,
    "Fraction": _fraction,
    "object": _object,
    "unsaved": lambda decoder, raw, depth: UnsavedValue(_class_name(raw["type"])),
}
