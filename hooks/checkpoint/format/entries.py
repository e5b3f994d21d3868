"""The long part of a manifest, its objects and tensors, as JSON and back.

A tensor is an object with named fields, and each of its chunks an array in the order of `Chunk`'s fields:
`[[offsets], [sizes], object, start, end, crc32]`. (Named fields for chunks too would make the manifests of 128 ranks
58 MB instead of 45, and their parsing the slowest part of a restore's start.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple, TypeVar

from .dtypes import ITEMSIZE
from .keys import CheckpointName, parse_object_name
from .manifest import Chunk, ObjectEntry, TensorEntry

_MAX_DIMS = 64  # torch's own limit
_MAX_NAME = 4096

_INT = {int}

#: A NamedTuple's own constructor is a Python function that does this, at three times the price.
_new = tuple.__new__


def objects_out(objects: tuple[ObjectEntry, ...]) -> list[dict[str, Any]]:
    """What `objects_in` takes."""
    raw = []
    for entry in objects:
        fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
        if not entry.checkpoint:
            del fields["checkpoint"]
        raw.append(fields)
    return raw


def tensors_out(tensors: tuple[TensorEntry, ...]) -> list[dict[str, Any]]:
    """What `tensors_in` takes."""
    raw = []
    for entry in tensors:
        fields = entry._asdict()
        if not entry.stored:
            del fields["stored"]
        raw.append(fields)
    return raw


def objects_in(raw: list[Any], name: CheckpointName, rank: int, world: int) -> tuple[ObjectEntry, ...]:
    """The objects that a manifest of this rank and checkpoint names, each in a place where it may be."""
    entries: list[ObjectEntry] = []
    seen: set[tuple[str, str]] = set()
    for index, fields in enumerate(raw):
        if type(fields) is not dict:
            raise InvalidField(f"objects[{index}] is no object")
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
    """Objects lie in this rank's folder, or in an earlier checkpoint of this attempt: no path leads anywhere else."""
    place = parse_object_name(entry.name)
    if place is None:
        raise InvalidField(f"object name {entry.name!r} is none of ours")
    if not entry.checkpoint:
        if place[:2] != (rank, world):
            raise InvalidField(f"object {entry.name!r} is not in the folder of rank {rank} of {world}")
        return
    other = CheckpointName.parse(entry.checkpoint)
    if other is None:
        raise InvalidField(f"checkpoint name {entry.checkpoint!r} is none of ours")
    if other.attempt != name.attempt or not other < name:
        raise InvalidField(
            f"object {entry.name!r} refers to {entry.checkpoint}, not an earlier one of this attempt"
        )


class DescribedTensor(NamedTuple):
    """What a tensor is, checked: as it stands in the JSON, and then as values."""

    dtype: str
    stored: str
    sizes: list[int]
    name: str
    shape: tuple[int, ...]
    itemsize: int


def tensors_in(
    raw: list[Any], objects: tuple[ObjectEntry, ...], known: dict[str, DescribedTensor]
) -> tuple[TensorEntry, ...]:
    """The tensors, each chunk inside its shape and its bytes inside their object.

    Args:
        known: what the manifests of other ranks have said of tensors, by name; it grows. What is said once more in the
            same words is neither checked nor kept again: nearly all, in all manifests but the first.
    """
    return tuple(each_tensor_in(raw, objects, known))


def each_tensor_in(
    raw: Iterable[Any], objects: tuple[ObjectEntry, ...], known: dict[str, DescribedTensor]
) -> Iterator[TensorEntry]:
    """The same, one after the other."""
    seen: set[str] = set()
    bounds = [(entry.header, entry.size) for entry in objects]
    for fields in raw:
        try:
            name, dtype, shape, chunks = fields["name"], fields["dtype"], fields["shape"], fields["chunks"]
            stored = fields.get("stored", "")
        except (TypeError, KeyError, AttributeError) as error:
            raise InvalidField(f"tensors[{len(seen)}] is not a tensor's entry ({error})") from error
        if type(name) is not str or not 0 < len(name) <= _MAX_NAME:
            raise InvalidField(f"tensors[{len(seen)}] has no usable name")
        if name in seen:
            raise InvalidField(f"tensor {name!r} is listed twice")
        seen.add(name)
        if type(shape) is not list or type(chunks) is not list:
            raise InvalidField(f"tensor {name!r} has no list of sizes and of chunks")
        said = known.get(name)
        if (
            said is None
            or (said.dtype, said.stored, said.sizes) != (dtype, stored, shape)
            or not _plain(shape)
        ):
            itemsize = _itemsize(name, dtype, stored)
            said = known[name] = DescribedTensor(
                dtype, stored, shape, name, _shape(name, shape, itemsize), itemsize
            )
        _, _, _, name, box, itemsize = said
        made = tuple([_chunk(chunk, name, box, itemsize, bounds) for chunk in chunks])
        yield _new(TensorEntry, (name, said.dtype, box, made, said.stored))


def _plain(sizes: list[Any]) -> bool:
    """Whether these equal others to the letter, if they equal them: True and 1.0 are no 1 here."""
    return set(map(type, sizes)) <= _INT


def _itemsize(name: str, dtype: Any, stored: Any) -> int:
    try:
        if dtype in ITEMSIZE and type(stored) is str:
            return ITEMSIZE[stored or dtype]
    except (TypeError, KeyError):
        pass  # no string, or no dtype: refused like any other that is unknown
    raise InvalidField(f"tensor {name!r} has dtype {str(stored or dtype)[:40]!r}, unknown to this version")


def _shape(name: str, shape: list[Any], itemsize: int) -> tuple[int, ...]:
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_SIZE:
            raise InvalidField(f"tensor {name!r} has a dimension of {str(size)[:40]}")
    if len(shape) > _MAX_DIMS or prod(shape) * itemsize > MAX_SIZE:
        raise InvalidField(f"tensor {name!r} is too large to exist")
    return tuple(shape)


def _chunk(
    raw: Any, name: str, shape: tuple[int, ...], itemsize: int, bounds: list[tuple[int, int]]
) -> Chunk:
    # A quarter of a million of these at 128 ranks: what is right passes in plain comparisons, words are for what fails.
    try:
        offsets, sizes, index, start, end, crc32 = raw
        volume, dims = itemsize, len(shape)
        if len(offsets) != dims or len(sizes) != dims:
            raise ValueError("another number of dimensions")
        for offset, size, limit in zip(offsets, sizes, shape):  # noqa: B905 (just compared, in half the time)
            if not type(offset) is type(size) is int or offset < 0 or size < 0 or offset + size > limit:
                raise InvalidField(f"a chunk of tensor {name!r} lies outside its shape {shape}")
            volume *= size
    except (TypeError, ValueError) as error:
        raise InvalidField(
            f"a chunk of tensor {name!r} is no box of {len(shape)} dimensions with its bytes"
        ) from error
    if not type(index) is type(start) is type(end) is type(crc32) is int:
        raise InvalidField(
            f"a chunk of tensor {name!r} says where its bytes are by something that is no integer"
        )
    if not 0 <= index < len(bounds):
        raise InvalidField(f"a chunk of tensor {name!r} lies in object {index} of {len(bounds)}")
    first, last = bounds[index]
    if not first <= start <= end <= last:
        raise InvalidField(
            f"a chunk of tensor {name!r} at bytes {start} to {end} lies outside its object's {first} to {last}"
        )
    if end - start != volume:
        raise InvalidField(f"a chunk of tensor {name!r} has {end - start} bytes, its box needs {volume}")
    if not 0 <= crc32 < 2**32:
        raise InvalidField(f"a chunk of tensor {name!r} has a CRC32 of {crc32}")
    return _new(Chunk, (tuple(offsets), tuple(sizes), index, start, end, crc32))


# Single fields of a JSON object from a store, checked one by one: the ground that `codec` and `entries` stand on.

#: Bytes and elements: what a signed 64-bit size can say.
MAX_SIZE = 2**63 - 1

#: Wall seconds at the end of the year 9998: what Python's dates, which end with 9999, can show in any zone.
_LAST_SECOND = 253_370_764_800

T = TypeVar("T")


class InvalidField(Exception):
    """A value is not what it must be. `codec` turns it into a `CheckpointError` that names the key."""


def typed(raw: dict[str, Any], name: str, kind: type[T]) -> T:
    """The field, of exactly this type: True is no 1 here."""
    value = raw.get(name)
    if type(value) is not kind:
        raise InvalidField(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def integer(raw: dict[str, Any], name: str, low: int, high: int = MAX_SIZE) -> int:
    value = typed(raw, name, int)
    if not low <= value <= high:
        raise InvalidField(f"{name} is {value}, not within {low} to {high}")
    return value


def text(raw: dict[str, Any], name: str, limit: int) -> str:
    value = typed(raw, name, str)
    if len(value) > limit:
        raise InvalidField(f"{name} has {len(value)} characters, at most {limit} are allowed")
    return value


def word(raw: dict[str, Any], name: str, words: tuple[T, ...]) -> T:
    """The field, one of a closed set."""
    value = raw.get(name)
    for each in words:
        if value == each:
            return each
    raise InvalidField(f"{name} is {str(value)[:40]!r}, not one of {', '.join(map(str, words))}")


def seconds(raw: dict[str, Any], name: str) -> float:
    """A wall-clock time: finite, and not from another age of the world."""
    value = raw.get(name)
    if type(value) not in (int, float) or not 0 <= value < _LAST_SECOND:  # type: ignore[operator]
        raise InvalidField(f"{name} is {str(value)[:40]!r}, not a time")
    return float(value)  # type: ignore[arg-type]
