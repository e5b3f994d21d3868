"""Manifests, markers and attempt records as bytes: plain JSON that carries its own CRC.

A file is `{"crc32":N,"manifest":{...}}`. N is zlib's CRC32 of the exact bytes of the inner value in the file. Any
tool reads the file as JSON, and a flipped bit anywhere is noticed before the first value is trusted.

The decoder validates everything (law 10): types, bounds, boxes inside shapes, byte ranges inside objects. Names
must stay inside the checkpoint's own directory, or inside one of the same attempt. A failure is a `CheckpointError`
that names the key and the reason. Every file begins with the number of its format, and any other number is refused by name.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ....providers.errors import CheckpointError
from ....providers.run_id import is_run_id
from ....providers.text import printable
from .entries import (
    InvalidField,
    integer,
    objects_in,
    objects_out,
    parsed,
    parsed_bytes,
    seconds,
    shown,
    text,
    typed,
    word,
)
from .keys import MAX_NUMBER, MAX_WORLD, CheckpointName
from .manifest import (
    FORMAT,
    FORMAT_KEY,
    KINDS,
    LEFT_OUT_LETTERS,
    LEVELS,
    MOST_LEFT_OUT,
    AttemptRecord,
    CommitMarker,
    Level,
    RankManifest,
    collector_at_rest,
)
from .packing import PackedCache, columns_in, columns_out, pack_state

_HEAD = re.compile(rb'\{"crc32":(\d{1,10}),"([a-z]+)":')
_TAIL = b"}\n"
#: Bytes of memory that a file's own JSON may take, beside what it packs: for any file, and for each byte of it. Two numbers of ten
#: digits in a list take 13 a byte, and a list of nothing takes 38.
_PLAIN, _PLAIN_FOR_EACH = 96 * 2**20, 12
#: Characters of the reason why a checkpoint is suspect.
_SUSPECT = 512

T = TypeVar("T")


class UnsupportedFormatError(CheckpointError):
    """Error for a file that another version of spotguard wrote. It may be good, so it is neither restored nor deleted."""


class _Unsupported(InvalidField):
    pass


def encode_manifest(manifest: RankManifest) -> bytes:
    """Return the bytes of a rank's manifest.

    Raises:
        StateError: its plain values are too large to be read back.
    """
    parts = {
        "objects": objects_out(manifest.objects),
        "tensors": columns_out(manifest.tensors),
        "state": pack_state(manifest.state),
    }
    return _seal("manifest", manifest, parts)


def encode_marker(marker: CommitMarker) -> bytes:
    """Return the bytes of COMMIT.json."""
    return _seal("commit", marker, {})


def encode_attempt(record: AttemptRecord) -> bytes:
    """Return the bytes of an attempt's record."""
    return _seal("attempt", record, {})


def encode_saving(left: float) -> bytes:
    """Return the bytes of SAVING.json, for a save that has `left` seconds."""
    return seal("saving", {"seconds": round(left, 1)})


def decode_manifest(data: bytes, key: str, cache: PackedCache | None = None) -> RankManifest:
    """Return the manifest in the object at `key`.

    Args:
        data: the bytes of the object.
        key: the key of the object, for errors.
        cache: what earlier manifests of the same checkpoint had. It makes many manifests fast, and grows.

    Raises:
        CheckpointError: the manifest is damaged, has another format, or contradicts itself.
    """
    known = PackedCache() if cache is None else cache
    known.begin_file()
    return _open(data, key, "manifest", lambda raw: manifest_of(raw, known))


def read_manifest(data: bytes, key: str, cache: PackedCache) -> tuple[RankManifest, dict[str, Any]]:
    """Return the manifest as `decode_manifest` does, and the fields of its file."""
    cache.begin_file()
    with in_file(key):
        raw = _value(_unseal(data, "manifest"))
        return manifest_of(raw, cache), raw


def decode_manifests(files: Iterable[tuple[str, bytes]]) -> list[RankManifest]:
    """Return the manifests of one checkpoint, given as (key, bytes)."""
    cache = PackedCache()
    with collector_at_rest():
        return [decode_manifest(data, key, cache) for key, data in files]


def decode_marker(data: bytes, key: str) -> CommitMarker:
    """Return the marker in the object at `key`; raise `CheckpointError` as `decode_manifest` does."""
    return _open(data, key, "commit", _marker)


def decode_attempt(data: bytes, key: str) -> AttemptRecord:
    """Return the attempt's record in the object at `key`; raise `CheckpointError` as `decode_manifest` does."""
    return _open(data, key, "attempt", _attempt)


def decode_saving(data: bytes, key: str) -> float:
    """Return the seconds that a save had at its start; raise `CheckpointError` as `decode_manifest` does."""
    return _open(data, key, "saving", lambda raw: seconds(raw, "seconds"))


def _seal(kind: str, value: RankManifest | CommitMarker | AttemptRecord, parts: Mapping[str, Any]) -> bytes:
    fields = {
        name: parts[name] if name in parts else getattr(value, name) for name in value.__dataclass_fields__
    }
    if "suspect" in fields:
        fields["suspect"] = fields["suspect"][:_SUSPECT]
    return seal(kind, fields)


def seal(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of this kind."""
    numbered = {FORMAT_KEY: FORMAT, **fields}
    # ASCII, so that JSON escapes a lone surrogate in a string; UTF-8 could not encode it.
    body = json.dumps(numbered, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b'{"crc32":%d,"%s":' % (zlib.crc32(body), kind.encode()) + body + _TAIL


def _open(data: bytes, key: str, kind: str, parse: Callable[[dict[str, Any]], T]) -> T:
    with in_file(key):
        return parse(_value(_unseal(data, kind)))


def open_file(data: bytes, key: str, kind: str) -> dict[str, Any]:
    """Return the fields of a file of this kind, whose CRC and format are right.

    Raises:
        CheckpointError: the file is damaged, or has another format.
    """
    return _open(data, key, kind, lambda raw: raw)


@contextmanager
def in_file(key: str) -> Iterator[None]:
    """Translate an `InvalidField` inside into an error that names the key."""
    try:
        yield
    except _Unsupported as error:
        raise UnsupportedFormatError(f"{key}: {error}") from error
    except InvalidField as error:
        raise CheckpointError(f"{key}: {error}") from error


def _unseal(data: bytes, kind: str) -> bytes:
    head = _HEAD.match(data)
    if head is None or head[2] != kind.encode() or not data.endswith(_TAIL):
        raise InvalidField(f"not a {kind} file of spotguard, or truncated ({len(data)} bytes)")
    body = data[head.end() : -len(_TAIL)]
    if (crc := zlib.crc32(body)) != int(head[1]):
        raise InvalidField(f"damaged: its CRC32 is {crc}, but its first line records {int(head[1])}")
    return body


def _value(body: bytes) -> dict[str, Any]:
    if parsed_bytes(body) > _PLAIN + _PLAIN_FOR_EACH * len(body):
        raise InvalidField("its values take too much memory for a file of its size")
    value = parsed(body, "the file")
    if type(value) is not dict:
        raise InvalidField(f"holds {type(value).__name__}, not an object")
    check_format(value)
    return value


def check_format(raw: dict[str, Any]) -> None:
    """Refuse fields of another format."""
    if FORMAT_KEY not in raw:
        raise _Unsupported(
            f"it has no 'store_format', expected {FORMAT}: a spotguard older than 0.1.0 wrote it; read it with that one, or "
            "begin a new run under another run id [SG603]"
        )
    if (version := integer(raw, FORMAT_KEY, 1)) != FORMAT:
        raise _Unsupported(
            f"its 'store_format' is {version}, expected {FORMAT}: read it with a newer spotguard [SG603]"
        )


def _name(raw: dict[str, Any]) -> CheckpointName:
    return CheckpointName(*(integer(raw, part, 0, MAX_NUMBER - 1) for part in ("attempt", "step", "save")))


def manifest_of(raw: dict[str, Any], cache: PackedCache) -> RankManifest:
    """Return the manifest with these fields."""
    name = _name(raw)
    world = integer(raw, "world", 1, MAX_WORLD)
    rank = integer(raw, "rank", 0, world - 1)
    objects = objects_in(typed(raw, "objects", list), name, rank, world)
    level, missing = _level(raw, world)
    return RankManifest(
        run_id=_run_id(raw),
        step=name.step,
        attempt=name.attempt,
        save=name.save,
        rank=rank,
        world=world,
        objects=objects,
        tensors=columns_in(raw.get("tensors"), objects, cache),
        state={name: cache.value(text) for name, text in typed(raw, "state", dict).items()},
        environment=shown(typed(raw, "environment", dict)),
        level=level,
        kind=word(raw, "kind", KINDS),
        incarnation=text(raw, "incarnation", 256),
        created=seconds(raw, "created"),
        digests=_digests(raw),
        missing=missing,
        history=_history(raw),
        suspect=_suspect(raw),
        left_out=_left_out(raw),
    )


def _level(raw: dict[str, Any], world: int) -> tuple[Level, tuple[int, ...]]:
    """Return the level, and the ranks whose extras are missing."""
    level, missing = word(raw, "level", LEVELS), typed(raw, "missing", list)
    if not all(type(rank) is int for rank in missing):
        raise InvalidField("missing must be a list of ranks")
    if missing and (missing != sorted({*missing}) or missing[0] < 0 or missing[-1] >= world):
        raise InvalidField(f"missing must name ranks from 0 to {world - 1} once each, in order")
    if level != "weights" and bool(missing) != (level == "partial-extras"):
        raise InvalidField(f"level {level!r} with {len(missing)} ranks missing")
    return level, tuple(missing)


def _digests(raw: dict[str, Any]) -> dict[str, int]:
    """Return the digests by name."""
    digests = typed(raw, "digests", dict)
    if not all(type(each) is int for each in digests.values()):
        raise InvalidField("digests must map names to integers")
    return digests


def _history(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the history. It is for people, so one of another form damages nothing."""
    history = shown(raw.get("history"))
    return history if isinstance(history, dict) else {}


def _suspect(raw: dict[str, Any]) -> str:
    """Return why the state is suspect. As with the history, no form of it damages anything."""
    suspect = shown(raw.get("suspect"))
    return suspect[:_SUSPECT] if isinstance(suspect, str) else ""


def _left_out(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return the values that were left out. A file without them has left out none."""
    found = typed({"left_out": [], **raw}, "left_out", list)
    if len(found) > MOST_LEFT_OUT or not all(
        type(each) is str and len(each) <= LEFT_OUT_LETTERS for each in found
    ):
        raise InvalidField(f"left_out must be up to {MOST_LEFT_OUT} texts")
    return tuple(map(printable, found))


def _run_id(raw: dict[str, Any]) -> str:
    if not is_run_id(run_id := text(raw, "run_id", 128)):
        raise InvalidField(f"run_id is {run_id!r}, which no run has")
    return run_id


def _marker(raw: dict[str, Any]) -> CommitMarker:
    name = _name(raw)
    world = integer(raw, "world", 1, MAX_WORLD)
    level, missing = _level(raw, world)
    return CommitMarker(
        run_id=_run_id(raw),
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
        elsewhere=integer(raw, "elsewhere", 0),
        history=_history(raw),
        suspect=_suspect(raw),
        left_out=_left_out(raw),
    )


def _attempt(raw: dict[str, Any]) -> AttemptRecord:
    return AttemptRecord(
        run_id=_run_id(raw),
        attempt=integer(raw, "attempt", 0, MAX_NUMBER - 1),
        incarnation=text(raw, "incarnation", 256),
        world=integer(raw, "world", 1, MAX_WORLD),
        info=shown(typed(raw, "info", dict)),
        created=seconds(raw, "created"),
    )
