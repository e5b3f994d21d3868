"""The tensors of one manifest as columns: an array for each number of a chunk, over all tensors that a rank holds.

A job of 1,024 ranks with 2,169 tensors each has two million chunks. One object for each chunk takes 18 s to check and 1 GiB
(measured). Columns are read by calls that run in C, and hold no object for the garbage collector to examine.

What ranks have in common is read once. Names, dtypes and shapes (`TensorForms`) are equal on most ranks, and so are the sizes
of shards and their objects. Equal texts in two manifests become the same object (`ColumnCache`).

In JSON a column is the base64 text of its numbers in little-endian order, compressed by zlib. (Compression is why names that
all ranks repeat cost next to nothing: a rank's 2,169 tensors take 30 kB, where format 2 took 282.)
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise, repeat
from math import prod
from operator import add, le, sub
from typing import Any, overload

from .entries import InvalidField, check_name, check_shape, itemsize_of
from .manifest import Chunk, ObjectEntry, TensorEntry, is_private

#: Most bytes of one column, decompressed: as many as the largest manifest of format 2 has for its tensors.
_MOST = 2**29
#: Texts that a cache keeps. The texts that ranks have in common are some dozens.
_KEPT = 256
#: The constructor of a NamedTuple is a Python function that makes this call, and takes three times as long.
_new = tuple.__new__


class TensorForms:
    """Names, dtypes and shapes of a run of tensors, checked.

    Args:
        names: unique names.
        dtypes: dtypes by torch's names, without "torch.".
        stored: the dtype of each tensor's stored bytes if it differs, else "".
        shapes: shapes of the global tensors.

    Raises:
        InvalidField: a name or a shape is not valid, or a dtype is unknown to this version.
    """

    __slots__ = ("dtypes", "itemsizes", "names", "shapes", "stored")

    def __init__(
        self,
        names: Sequence[Any],
        dtypes: Sequence[Any],
        stored: Sequence[Any],
        shapes: Sequence[Any],
    ) -> None:
        if not len(names) == len(dtypes) == len(stored) == len(shapes):
            raise InvalidField("the columns of tensors have different lengths")
        itemsizes = []
        for index, (name, dtype, kept, shape) in enumerate(zip(names, dtypes, stored, shapes, strict=True)):
            check_name(name, index)
            itemsizes.append(itemsize_of(name, dtype, kept))
            check_shape(name, shape, itemsizes[-1])
        self.names: tuple[str, ...] = tuple(names)
        self.dtypes: tuple[str, ...] = tuple(dtypes)
        self.stored: tuple[str, ...] = tuple(stored)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(map(tuple, shapes))
        self.itemsizes = tuple(itemsizes)


class ChunkLayout:
    """Where the numbers of each tensor and chunk are in the columns.

    Args:
        forms: the runs of tensors, in order.
        counts: the number of chunks of each tensor.
    """

    __slots__ = ("first", "forms", "itemsizes", "limits", "nbytes", "place", "starts")

    def __init__(self, forms: tuple[TensorForms, ...], counts: Sequence[int]) -> None:
        self.forms = forms
        #: Index of the first tensor of each run.
        self.starts = [*accumulate((len(each.names) for each in forms), initial=0)]
        shapes = [*chain.from_iterable(each.shapes for each in forms)]
        if len(counts) != len(shapes):
            raise InvalidField(f"{len(counts)} numbers of chunks for {len(shapes)} tensors")
        #: Index of the first chunk of each tensor, and behind the last.
        self.first = array("I", accumulate(counts, initial=0))
        #: Index of the first offset of each chunk in `offsets`, and of its first size in `sizes`.
        dims = chain.from_iterable(map(repeat, map(len, shapes), counts))
        self.place = array("I", accumulate(dims, initial=0))
        #: For each offset the size of its tensor in that dimension.
        self.limits = array("q", chain.from_iterable(chain.from_iterable(map(repeat, shapes, counts))))
        itemsizes = chain.from_iterable(each.itemsizes for each in forms)
        self.itemsizes = bytes(chain.from_iterable(map(repeat, itemsizes, counts)))
        #: Bytes of each chunk, by the identity of the column of sizes that they follow from.
        self.nbytes: dict[int, tuple[array[int], array[int]]] = {}

    def bytes_of(self, sizes: array[int]) -> array[int]:
        """Return the bytes of each chunk. Columns of sizes that are one object are computed once."""
        known = self.nbytes.get(id(sizes))
        if known is None or known[0] is not sizes:
            ends = pairwise(self.place)
            sized = zip(ends, self.itemsizes, strict=True)
            volumes = array("q", [prod(sizes[a:b]) * size for (a, b), size in sized])
            if len(self.nbytes) >= _KEPT:
                self.nbytes.clear()
            known = self.nbytes[id(sizes)] = (sizes, volumes)
        return known[1]


class TensorColumns(Sequence[TensorEntry]):
    """The tensors of one rank. Each item is made when it is asked for.

    Args:
        layout: where the numbers are.
        offsets: the offsets of all chunks, dimension by dimension.
        sizes: their sizes, in the same order.
        objects: the index of each chunk's object.
        starts: the first byte of each chunk in its object.
        crc32s: the CRC32 of each chunk.
    """

    __slots__ = ("crc32s", "layout", "objects", "offsets", "sizes", "starts")

    def __init__(
        self,
        layout: ChunkLayout,
        offsets: array[int],
        sizes: array[int],
        objects: array[int],
        starts: array[int],
        crc32s: array[int],
    ) -> None:
        self.layout = layout
        self.offsets = offsets
        self.sizes = sizes
        self.objects = objects
        self.starts = starts
        self.crc32s = crc32s

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry], cache: ColumnCache | None = None) -> TensorColumns:
        """Return the columns of these tensors. They must be valid: their boxes and bytes are not checked."""
        if isinstance(tensors, TensorColumns):
            return tensors
        cache = ColumnCache() if cache is None else cache
        entries = [*tensors]
        forms = tuple(
            cache.forms(
                tuple(each.name for each in run),
                tuple(each.dtype for each in run),
                tuple(each.stored for each in run),
                tuple(each.shape for each in run),
            )
            for run in ([*run] for _, run in groupby(entries, key=lambda each: is_private(each.name)))
        )
        chunks = [*chain.from_iterable(each.chunks for each in entries)]
        return cls(
            cache.layout(forms, array("I", [len(each.chunks) for each in entries])),
            array("q", chain.from_iterable(chunk.offsets for chunk in chunks)),
            array("q", chain.from_iterable(chunk.sizes for chunk in chunks)),
            array("I", [chunk.object for chunk in chunks]),
            array("q", [chunk.start for chunk in chunks]),
            array("I", [chunk.crc32 for chunk in chunks]),
        )

    def chunk(self, index: int) -> Chunk:
        """Return one chunk, by its index in the columns."""
        layout = self.layout
        a, b = layout.place[index], layout.place[index + 1]
        start = self.starts[index]
        return _new(
            Chunk,
            (
                tuple(self.offsets[a:b]),
                tuple(self.sizes[a:b]),
                self.objects[index],
                start,
                start + layout.bytes_of(self.sizes)[index],
                self.crc32s[index],
            ),
        )

    def check(self, objects: Sequence[ObjectEntry]) -> None:
        """Check that each chunk is inside its tensor's shape, and its bytes inside their object.

        Raises:
            InvalidField: a chunk is not; the message names the tensor.
        """
        layout, count = self.layout, len(self.starts)
        if not len(self.objects) == len(self.crc32s) == count == layout.first[-1]:
            raise InvalidField("the columns of chunks have different lengths")
        if not len(self.offsets) == len(self.sizes) == len(layout.limits):
            raise InvalidField("the columns of offsets and sizes have different lengths")
        ends = map(add, self.offsets, self.sizes)
        least = min(min(self.offsets, default=0), min(self.sizes, default=0))
        if least < 0 or not all(map(le, ends, layout.limits)):
            self._refuse_box()
        if max(self.objects, default=-1) >= len(objects):
            raise InvalidField(f"a chunk is in object {max(self.objects)} of {len(objects)}")
        heads, tails = [each.header for each in objects], [each.size for each in objects]
        first = map(heads.__getitem__, self.objects)
        last = map(tails.__getitem__, self.objects)
        ends = map(add, self.starts, layout.bytes_of(self.sizes))
        if not all(map(le, first, self.starts)) or not all(map(le, ends, last)):
            self._refuse_bytes(objects)

    def _refuse_box(self) -> None:
        for entry in self:
            for chunk in entry.chunks:
                box = zip(chunk.offsets, chunk.sizes, entry.shape, strict=True)
                if any(a < 0 or n < 0 or a + n > limit for a, n, limit in box):
                    raise InvalidField(
                        f"a chunk of tensor {entry.name!r} lies outside its shape {entry.shape}"
                    )

    def _refuse_bytes(self, objects: Sequence[ObjectEntry]) -> None:
        for entry in self:
            for chunk in entry.chunks:
                at = objects[chunk.object]
                if not at.header <= chunk.start <= chunk.end <= at.size:
                    raise InvalidField(
                        f"a chunk of tensor {entry.name!r} at bytes {chunk.start} to {chunk.end} lies outside its "
                        f"object's {at.header} to {at.size}"
                    )

    def __len__(self) -> int:
        return len(self.layout.first) - 1

    def __iter__(self) -> Iterator[TensorEntry]:
        first, at = self.layout.first, 0
        for forms in self.layout.forms:
            for name, dtype, stored, shape in zip(
                forms.names, forms.dtypes, forms.stored, forms.shapes, strict=True
            ):
                chunks = tuple([self.chunk(index) for index in range(first[at], first[at + 1])])
                yield _new(TensorEntry, (name, dtype, shape, chunks, stored))
                at += 1

    @overload
    def __getitem__(self, index: int) -> TensorEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TensorEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> TensorEntry | tuple[TensorEntry, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        at = range(len(self))[index]
        run = bisect_right(self.layout.starts, at) - 1
        forms, own = self.layout.forms[run], at - self.layout.starts[run]
        first = self.layout.first
        chunks = tuple([self.chunk(each) for each in range(first[at], first[at + 1])])
        return TensorEntry(forms.names[own], forms.dtypes[own], forms.shapes[own], chunks, forms.stored[own])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class ColumnCache:
    """Decoded columns by their text, so that what several manifests repeat is decoded, checked and kept once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], Any] = {}
        self._forms: dict[tuple[tuple[Any, ...], ...], TensorForms] = {}
        self._layouts: dict[tuple[tuple[int, ...], bytes], ChunkLayout] = {}

    def forms(
        self,
        names: tuple[str, ...],
        dtypes: tuple[str, ...],
        stored: tuple[str, ...],
        shapes: tuple[tuple[int, ...], ...],
    ) -> TensorForms:
        """Return the forms of these columns, the same object for equal ones."""
        key = (names, dtypes, stored, shapes)
        if (known := self._forms.get(key)) is None:
            known = self._forms[key] = TensorForms(names, dtypes, stored, shapes)
        return known

    def packed_forms(self, text: Any) -> TensorForms:
        """Return the forms that `pack` has packed, the same object for equal texts."""
        known: TensorForms | None = self._known("forms", text)
        if known is None:
            value = self.value(text, repeated=False)
            if type(value) is not list or len(value) != 4 or not all(type(each) is list for each in value):
                raise InvalidField("the forms of tensors are no four columns")
            known = TensorForms(*value)
            self._keep("forms", text, known)
        return known

    def layout(self, forms: tuple[TensorForms, ...], counts: array[int]) -> ChunkLayout:
        """Return the layout of these tensors, the same object for equal ones.

        Raises:
            InvalidField: a tensor is listed twice.
        """
        key = (tuple(map(id, forms)), counts.tobytes())
        if (known := self._layouts.get(key)) is None:
            names = [*chain.from_iterable(each.names for each in forms)]
            if len({*names}) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InvalidField(f"tensor {twice!r} is listed twice")
            known = self._layouts[key] = ChunkLayout(forms, counts)
        return known

    def value(self, text: Any, *, repeated: bool = True) -> Any:
        """Return the JSON value that `pack` has packed. Callers must not change it.

        Args:
            text: the text.
            repeated: other ranks are likely to have the same text.
        """
        if (known := self._known("json", text)) is None:
            try:
                known = json.loads(_unpack(text), parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise InvalidField("a packed value is not JSON inside") from error
            if repeated:
                self._keep("json", text, known)
        return known

    def numbers(self, text: Any, code: str, *, repeated: bool = True) -> array[int]:
        """Return the numbers that `pack_numbers` has packed.

        Args:
            text: the text.
            code: type code of `array`.
            repeated: other ranks are likely to have the same text.
        """
        known: array[int] | None = self._known(code, text) if repeated else None
        if known is None:
            raw, known = _unpack(text), array(code)
            if len(raw) % known.itemsize:
                raise InvalidField("a column of numbers is cut short")
            known.frombytes(raw)
            if sys.byteorder == "big":
                known.byteswap()
            if repeated:
                self._keep(code, text, known)
        return known

    def _known(self, kind: str, text: Any) -> Any:
        return self._texts.get((kind, text)) if type(text) is str else None

    def _keep(self, kind: str, text: str, value: Any) -> None:
        if len(self._texts) >= _KEPT:
            self._texts.clear()
        self._texts[kind, text] = value


def columns_out(tensors: Sequence[TensorEntry]) -> dict[str, Any]:
    """Return the JSON form that `columns_in` takes."""
    columns = TensorColumns.of(tensors)
    layout = columns.layout
    return {
        "forms": [pack([each.names, each.dtypes, each.stored, each.shapes]) for each in layout.forms],
        "counts": pack_numbers("I", map(sub, layout.first[1:], layout.first)),
        "offsets": pack_numbers("q", columns.offsets),
        "sizes": pack_numbers("q", columns.sizes),
        "objects": pack_numbers("I", columns.objects),
        # Differences, because chunks of one size follow each other, and equal numbers compress to nothing.
        "starts": pack_numbers("q", map(sub, columns.starts, chain([0], columns.starts))),
        "crc32": pack_numbers("I", columns.crc32s),
    }


def columns_in(raw: Any, objects: Sequence[ObjectEntry], cache: ColumnCache) -> TensorColumns:
    """Return the tensors, each chunk inside its shape and its bytes inside their object.

    Args:
        raw: the JSON object.
        objects: the objects of the same manifest.
        cache: what earlier manifests of the same checkpoint had; it grows.

    Raises:
        InvalidField: the columns are not valid.
    """
    if type(raw) is not dict or type(raw.get("forms")) is not list:
        raise InvalidField("tensors are no columns")
    runs = tuple([cache.packed_forms(text) for text in raw["forms"]])
    starts = cache.numbers(raw.get("starts"), "q", repeated=False)
    counts = cache.numbers(raw.get("counts"), "I")
    if sum(counts) != len(starts):
        raise InvalidField(f"{len(starts)} chunks, and {sum(counts)} are counted")
    columns = TensorColumns(
        cache.layout(runs, counts),
        _narrow(cache.numbers(raw.get("offsets"), "q", repeated=False)),
        cache.numbers(raw.get("sizes"), "q"),
        cache.numbers(raw.get("objects"), "I"),
        _summed(starts),
        cache.numbers(raw.get("crc32"), "I", repeated=False),
    )
    columns.check(objects)
    return columns


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
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")


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


def _unpack(text: Any) -> bytes:
    if type(text) is not str:
        raise InvalidField(f"a column is {type(text).__name__}, not text")
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(text, validate=True), _MOST)
    except (ValueError, zlib.error) as error:
        raise InvalidField("a column is not compressed text") from error
    if not inflate.eof or inflate.unused_data:
        raise InvalidField(f"a column is cut short, or has more than {_MOST} bytes")
    return raw


def _no_constant(constant: str) -> float:
    raise InvalidField(f"{constant} is not a JSON number")
