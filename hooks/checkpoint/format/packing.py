"""Columns as JSON: packed texts, and the cache of those that many manifests have.

A column is the base64 text of its numbers in little-endian order, compressed by zlib. (Compression is why names that
all ranks repeat cost next to nothing: a rank's 2,169 tensors take 22 kB, where one object for each tensor took 282.)
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import mul, sub
from typing import Any

from ....providers.errors import StateError
from .columns import KEPT, ColumnCache, TensorColumns, TensorForms, TensorRun
from .entries import InvalidField, parsed, parsed_bytes
from .manifest import ObjectEntry, TensorEntry

#: Bytes of memory that the packed texts of one file may take: for any file, and for each byte of them. Equal numbers compress to a
#: thousandth, but no two names are equal, and few CRCs: a tensor counts 800 bytes here, and has at least 8 in a large file.
_FREE, _FOR_EACH = 192 * 2**20, 96
#: Bytes that a chunk takes in its columns and in what follows from them, beside those for each of its dimensions.
_CHUNK, _DIMENSION = 128, 72
#: The columns of a run, beside its forms.
_COLUMNS = ("counts", "offsets", "sizes", "objects", "starts", "crc32")


class PackedCache(ColumnCache):
    """Decoded columns by their text, so that what several manifests repeat is decoded, checked and kept once."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[tuple[str, str], Any] = {}
        #: The texts that a second manifest had, since the cache was last full.
        self._repeated: set[tuple[str, str]] = set()
        self._left = _FREE

    def begin_file(self) -> None:
        """Let the texts of the next file take as much memory as any file may."""
        self._left = _FREE

    def allow(self, *texts: Any) -> None:
        """Let them take as much more as texts of this length may need."""
        self._left += _FOR_EACH * sum(len(text) for text in texts if type(text) is str)

    def spend(self, nbytes: int) -> None:
        """Count memory before it is taken.

        Raises:
            InvalidField: the file would take more than it may.
        """
        self._left -= nbytes
        if self._left < 0:
            raise InvalidField(
                "its packed values take too much memory for a file of its size; register large lists as tensors"
            )

    def packed_forms(self, text: Any) -> TensorForms:
        """Return the forms that `pack` has packed, the same object for equal texts."""
        known: TensorForms | None = self._known("forms", text)
        if known is None:
            value = self.value(text, repeated=False)
            if type(value) is not list or len(value) != 4 or not all(type(each) is list for each in value):
                raise InvalidField("the forms of tensors are not four columns")
            known = TensorForms(*value)
            self._keep("forms", text, known)
        return known

    def value(self, text: Any, *, repeated: bool = True) -> Any:
        """Return the JSON value that `pack` has packed. Callers must not change it.

        Args:
            text: the text.
            repeated: other ranks are likely to have the same text.
        """
        if (known := self._known("json", text)) is None:
            self.allow(text)
            raw = _unpack(text, self._left // 2)
            if not raw.isascii():
                raise InvalidField("the content of a packed value is not ASCII")
            self.spend(parsed_bytes(raw))
            known = parsed(raw, "a packed value")
            if repeated:
                self._keep("json", text, known)
        return known

    def numbers(self, text: Any, code: str, count: int, *, repeated: bool = True) -> array[int]:
        """Return the numbers that `pack_numbers` has packed. The caller has counted their memory.

        Args:
            text: the text.
            code: type code of `array`.
            count: how many they must be.
            repeated: other ranks are likely to have the same text.
        """
        known: array[int] | None = self._known(code, text) if repeated else None
        if known is None:
            known = array(code)
            raw = _unpack(text, count * known.itemsize)
            known.frombytes(raw[: len(raw) - len(raw) % known.itemsize])
            if sys.byteorder == "big":
                known.byteswap()
            if repeated:
                self._keep(code, text, known)
        if len(known) != count:
            raise InvalidField(f"a column has {len(known)} numbers in place of {count}")
        return known

    def _known(self, kind: str, text: Any) -> Any:
        if type(text) is not str or (known := self._texts.get((kind, text))) is None:
            return None
        self._repeated.add((kind, text))
        return known

    def _keep(self, kind: str, text: str, value: Any) -> None:
        if len(self._texts) >= KEPT:
            # Names of one rank's own tensors fill the cache; what ranks have in common must stay the same object.
            self._texts = {key: kept for key, kept in self._texts.items() if key in self._repeated}
            self._repeated.clear()
        self._texts[kind, text] = value


def columns_out(tensors: Sequence[TensorEntry]) -> list[dict[str, Any]]:
    """Return the JSON form that `columns_in` takes."""
    return [_run_out(run) for run in TensorColumns.of(tensors).runs]


def _run_out(run: TensorRun) -> dict[str, Any]:
    forms, first = run.layout.forms, run.layout.first
    return {
        "forms": pack([forms.names, forms.dtypes, forms.stored, forms.shapes]),
        "counts": pack_numbers("I", map(sub, first[1:], first)),
        "offsets": pack_numbers("q", run.offsets),
        "sizes": pack_numbers("q", run.sizes),
        "objects": pack_numbers("I", run.objects),
        # Differences, because chunks of one size follow each other, and equal numbers compress to nothing.
        "starts": pack_numbers("q", map(sub, run.starts, chain([0], run.starts))),
        "crc32": pack_numbers("I", run.crc32s),
    }


def columns_in(raw: Any, objects: Sequence[ObjectEntry], cache: PackedCache) -> TensorColumns:
    """Return the tensors, each chunk inside its shape and its bytes inside their object.

    Args:
        raw: the JSON list of runs.
        objects: the objects of the same manifest.
        cache: what earlier manifests of the same checkpoint had; it grows.

    Raises:
        InvalidField: the columns are not valid, or a tensor is listed twice.
    """
    if type(raw) is not list:
        raise InvalidField("tensors must be a list of columns")
    columns = TensorColumns(tuple([_run_in(each, objects, cache) for each in raw]))
    if len(columns.runs) > 1:
        seen: set[str] = set()
        for run in columns.runs:
            names = run.layout.forms.names
            if not seen.isdisjoint(names):
                raise InvalidField(f"tensor {next(filter(seen.__contains__, names))!r} is listed twice")
            seen.update(names)
    return columns


def _run_in(raw: Any, objects: Sequence[ObjectEntry], cache: PackedCache) -> TensorRun:
    if type(raw) is not dict:
        raise InvalidField("tensors must be a list of columns")
    forms = cache.packed_forms(raw.get("forms"))
    counts = cache.numbers(raw.get("counts"), "I", len(forms.names))
    chunks, dims = sum(counts), sum(map(mul, counts, map(len, forms.shapes)))
    cache.allow(*map(raw.get, _COLUMNS))
    cache.spend(_CHUNK * chunks + _DIMENSION * dims)
    run = TensorRun(
        cache.layout(forms, counts),
        _narrow(cache.numbers(raw.get("offsets"), "q", dims, repeated=False)),
        cache.numbers(raw.get("sizes"), "q", dims),
        cache.numbers(raw.get("objects"), "I", chunks),
        _summed(cache.numbers(raw.get("starts"), "q", chunks, repeated=False)),
        cache.numbers(raw.get("crc32"), "I", chunks, repeated=False),
    )
    run.check(objects)
    return run


def _narrow(numbers: array[int]) -> array[int]:
    """Return the numbers in half of the memory, if none needs more than 32 bits."""
    try:
        return array("I", numbers)
    except OverflowError:
        return numbers


def _summed(differences: array[int]) -> array[int]:
    try:
        return _narrow(array("q", accumulate(differences)))
    except OverflowError as error:
        raise InvalidField("a chunk begins beyond the largest size") from error


def pack(value: Any) -> str:
    """Return a JSON value as compressed text."""
    return _packed(_json(value))


def pack_state(trees: Mapping[str, Any], path_of: Callable[[str], str] = str) -> dict[str, str]:
    """Return encoded values as compressed texts.

    Args:
        trees: the encoded values, by name.
        path_of: returns the path of the largest value in a tree, for the error.

    Raises:
        StateError: `PackedCache` would refuse them.
    """
    left, packed = _FREE, {}
    for name, tree in trees.items():
        raw = _json(tree)
        packed[name] = _packed(raw)
        left += _FOR_EACH * len(packed[name])
        need = parsed_bytes(raw)
        if max(need, 2 * len(raw)) > left:
            raise StateError(
                f"{path_of(name)} is too large for plain values: {name} has {len(raw) / 2**20:,.0f} MiB of JSON, and to read it a restore "
                f"would need {need / 2**20:,.0f} MiB of memory, of {left / 2**20:,.0f} that are left; keep it as a tensor or a numpy "
                "array [SG401]"
            )
        left -= need
    return packed


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def pack_numbers(code: str, numbers: Iterable[int]) -> str:
    """Return numbers as compressed text, in little-endian order.

    Args:
        code: type code of `array`, which says how many bits each has.
        numbers: the numbers.
    """
    column = array(code, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(zlib.compress(column.tobytes(), 6)).decode("ascii")


def _unpack(text: Any, most: int) -> bytes:
    if type(text) is not str:
        raise InvalidField(f"a column is {type(text).__name__}, not text")
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(text, validate=True), most + 1)
    except (ValueError, zlib.error) as error:
        raise InvalidField("a column is not compressed text") from error
    if not inflate.eof or inflate.unused_data or len(raw) > most:
        raise InvalidField(f"a column is truncated, or has more than {most} bytes")
    return raw
