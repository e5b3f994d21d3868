"""Manifests, markers and attempt records as bytes: plain JSON that carries its own CRC.

A file is `{"crc32":N,"manifest":{...}}`. N is zlib's CRC32 of the exact bytes of the inner value in the file. Any
tool reads the file as JSON, and a flipped bit anywhere is noticed before the first value is trusted.

The decoder validates everything (law 10): types, bounds, boxes inside shapes, byte ranges inside objects. Names
must stay inside the checkpoint's own folder, or inside one of the same attempt. A failure is a `CheckpointError`
that names the key and the reason. The decoder skips unknown fields, so that a newer writer may add some. It refuses
a newer *format* by name.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ....providers.errors import CheckpointError
from .entries import (
    DescribedTensor,
    InvalidField,
    each_tensor_in,
    integer,
    objects_in,
    objects_out,
    seconds,
    tensors_in,
    tensors_out,
    text,
    typed,
    word,
)
from .keys import MAX_NUMBER, MAX_WORLD, CheckpointName
from .manifest import (
    FORMAT,
    KINDS,
    LEVELS,
    AttemptRecord,
    CommitMarker,
    Level,
    RankManifest,
    TensorEntry,
    collector_at_rest,
    format_of,
)

_HEAD = re.compile(rb'\{"crc32":(\d{1,10}),"([a-z]+)":')
_TAIL = b"}\n"
#: Delimiters of the list of tensors as the encoder writes it: between the objects and the state.
_TENSORS, _AFTER_TENSORS = b'"tensors":[', b'],"state":'

T = TypeVar("T")


class NewerFormatError(CheckpointError):
    """Error for a file that a newer spotguard wrote. It may be good, so it is neither restored nor deleted."""


class _Newer(InvalidField):
    pass


def encode_manifest(manifest: RankManifest) -> bytes:
    """Return the bytes of a rank's manifest."""
    parts = {"objects": objects_out(manifest.objects), "tensors": tensors_out(manifest.tensors)}
    return _seal("manifest", manifest, parts)


def encode_marker(marker: CommitMarker) -> bytes:
    """Return the bytes of COMMIT.json."""
    return _seal("commit", marker, {})


def encode_attempt(record: AttemptRecord) -> bytes:
    """Return the bytes of an attempt's record."""
    return _seal("attempt", record, {})


def decode_manifest(data: bytes, key: str) -> RankManifest:
    """Return the manifest in the object at `key`.

    Raises:
        CheckpointError: the manifest is damaged, has a newer format, or contradicts itself.
    """
    return next(_decoded([(key, data)]))


def decode_manifests(files: Iterable[tuple[str, bytes]]) -> list[RankManifest]:
    """Return many manifests, given as (key, bytes), at the speed that 128 ranks need."""
    with collector_at_rest():
        return list(_decoded(files))


def _decoded(files: Iterable[tuple[str, bytes]]) -> Iterator[RankManifest]:
    known: dict[str, DescribedTensor] = {}
    for key, data in files:
        yield _open(data, key, "manifest", lambda raw: _manifest(raw, known))


def open_manifest(
    data: bytes, key: str, known: dict[str, DescribedTensor] | None = None
) -> tuple[RankManifest, Iterator[TensorEntry]]:
    """Return the manifest without its tensors, and an iterator over these that keeps none of them.

    Args:
        data: the bytes of the object.
        key: the key of the object, for errors.
        known: as in `entries.tensors_in`.

    Raises:
        CheckpointError: as for `decode_manifest`; the iterator raises errors of its tensors.
    """
    with _of(key):
        raw, tensors = _apart(_unseal(data, "manifest"))
        manifest = _manifest(raw, {})
    return manifest, _each(key, each_tensor_in(tensors, manifest.objects, {} if known is None else known))


def decode_marker(data: bytes, key: str) -> CommitMarker:
    """Return the marker in the object at `key`; raise `CheckpointError` as `decode_manifest` does."""
    return _open(data, key, "commit", _marker)


def decode_attempt(data: bytes, key: str) -> AttemptRecord:
    """Return the attempt's record in the object at `key`; raise `CheckpointError` as `decode_manifest` does."""
    return _open(data, key, "attempt", _attempt)


def _seal(kind: str, value: RankManifest | CommitMarker | AttemptRecord, parts: Mapping[str, Any]) -> bytes:
    names = ["format", *(name for name in value.__dataclass_fields__ if name != "format")]
    fields = {name: parts[name] if name in parts else getattr(value, name) for name in names}
    # ASCII, so that JSON escapes a lone surrogate in a string; UTF-8 could not encode it.
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b'{"crc32":%d,"%s":' % (zlib.crc32(body), kind.encode()) + body + _TAIL


def _open(data: bytes, key: str, kind: str, parse: Callable[[dict[str, Any]], T]) -> T:
    with _of(key):
        return parse(_value(_unseal(data, kind)))


@contextmanager
def _of(key: str) -> Iterator[None]:
    """Translate an `InvalidField` inside into an error that names the key."""
    try:
        yield
    except _Newer as error:
        raise NewerFormatError(f"{key}: {error}") from error
    except InvalidField as error:
        raise CheckpointError(f"{key}: {error}") from error


def _each(key: str, tensors: Iterator[TensorEntry]) -> Iterator[TensorEntry]:
    with _of(key):
        yield from tensors


def _apart(body: bytes) -> tuple[dict[str, Any], Iterator[Any]]:
    """Return the manifest with an empty list of tensors, and an iterator that parses the list on demand.

    The position of the list follows from the encoder's form: a quote inside a string has a backslash. A manifest in
    another form is parsed as a whole.
    """
    first = body.find(_TENSORS) + len(_TENSORS)
    last = body.find(_AFTER_TENSORS, first)
    if body.count(_TENSORS) == 1 and last >= 0:
        try:
            raw = _value(body[:first] + body[last:])
        except _Newer:
            raise
        except InvalidField:
            pass  # the match was not the list of tensors: parse the whole
        else:
            if raw.get("tensors") == []:
                return raw, _parsed(body[first:last].decode("ascii", "replace"))
    raw = _value(body)
    tensors, raw["tensors"] = typed(raw, "tensors", list), []
    return raw, iter(tensors)


def _parsed(text: str) -> Iterator[Any]:
    """Yield the values of a JSON list without its brackets."""
    at = 0
    while at < len(text) or at:
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InvalidField("not JSON inside") from error
        yield value
        if at == len(text):
            return
        if text[at] != ",":
            raise InvalidField("not JSON inside")
        at += 1


def _unseal(data: bytes, kind: str) -> bytes:
    head = _HEAD.match(data)
    if head is None or head[2] != kind.encode() or not data.endswith(_TAIL):
        raise InvalidField(f"not a {kind} file of spotguard's, or cut short ({len(data)} bytes)")
    body = data[head.end() : -len(_TAIL)]
    if (crc := zlib.crc32(body)) != int(head[1]):
        raise InvalidField(f"damaged: its CRC32 is {crc}, it says {int(head[1])}")
    return body


def _value(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise InvalidField("not JSON inside") from error
    if type(value) is not dict:
        raise InvalidField(f"holds {type(value).__name__}, not an object")
    version = integer(value, "format", 1)
    if version > FORMAT:
        raise _Newer(f"format version {version} is newer than {FORMAT}: read it with a newer spotguard")
    return value


def _no_constants(constant: str) -> float:
    raise InvalidField(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constants)


def _name(raw: dict[str, Any]) -> CheckpointName:
    return CheckpointName(*(integer(raw, part, 0, MAX_NUMBER - 1) for part in ("attempt", "step", "save")))


def _manifest(raw: dict[str, Any], known: dict[str, DescribedTensor]) -> RankManifest:
    name = _name(raw)
    world = integer(raw, "world", 1, MAX_WORLD)
    rank = integer(raw, "rank", 0, world - 1)
    objects = objects_in(typed(raw, "objects", list), name, rank, world)
    level, missing = _level(raw, world)
    return RankManifest(
        run_id=text(raw, "run_id", 128),
        step=name.step,
        attempt=name.attempt,
        save=name.save,
        rank=rank,
        world=world,
        objects=objects,
        tensors=tensors_in(typed(raw, "tensors", list), objects, known),
        state=typed(raw, "state", dict),
        environment=typed(raw, "environment", dict),
        level=level,
        kind=word(raw, "kind", KINDS),
        incarnation=text(raw, "incarnation", 256),
        created=seconds(raw, "created"),
        digests=_digests(raw),
        missing=missing,
        format=raw["format"],
    )


def _level(raw: dict[str, Any], world: int) -> tuple[Level, tuple[int, ...]]:
    """Return the level, and the ranks whose extras are missing.

    Manifests and markers of format 1 may omit the ranks.
    """
    level, missing = word(raw, "level", LEVELS), raw.get("missing", [])
    if raw["format"] < format_of(level):
        raise InvalidField(f"level {level!r} needs format {format_of(level)}, not {raw['format']}")
    if not isinstance(missing, list) or not all(type(rank) is int for rank in missing):
        raise InvalidField("missing must be a list of ranks")
    if missing and (missing != sorted({*missing}) or missing[0] < 0 or missing[-1] >= world):
        raise InvalidField(f"missing must name ranks from 0 to {world - 1} once each, in order")
    if level != "weights" and bool(missing) != (level == "partial-extras"):
        raise InvalidField(f"level {level!r} with {len(missing)} ranks missing")
    return level, tuple(missing)


def _digests(raw: dict[str, Any]) -> dict[str, int]:
    """Return the digests by name; older manifests have none."""
    digests = raw.get("digests", {})
    if not isinstance(digests, dict) or not all(type(each) is int for each in digests.values()):
        raise InvalidField("digests are not numbers by name")
    return digests


def _marker(raw: dict[str, Any]) -> CommitMarker:
    name = _name(raw)
    world = integer(raw, "world", 1, MAX_WORLD)
    level, missing = _level(raw, world)
    return CommitMarker(
        run_id=text(raw, "run_id", 128),
        step=name.step,
        attempt=name.attempt,
        save=name.save,
        world=world,
        objects=integer(raw, "objects", 0),
        nbytes=integer(raw, "nbytes", 0),
        level=level,
        kind=word(raw, "kind", KINDS),
        created=seconds(raw, "created"),
        missing=missing,
        elsewhere=integer({"elsewhere": 0, **raw}, "elsewhere", 0),
        format=raw["format"],
    )


def _attempt(raw: dict[str, Any]) -> AttemptRecord:
    return AttemptRecord(
        run_id=text(raw, "run_id", 128),
        attempt=integer(raw, "attempt", 0, MAX_NUMBER - 1),
        incarnation=text(raw, "incarnation", 256),
        world=integer(raw, "world", 1, MAX_WORLD),
        info=typed(raw, "info", dict),
        created=seconds(raw, "created"),
        format=raw["format"],
    )
