"""The tensors of one manifest as columns: an array for each number of a chunk, over all tensors that a rank holds.

A job of 1,024 ranks with 2,169 tensors each has two million chunks. One object for each chunk takes 18 s to check and 1 GiB
(measured). Columns are read by calls that run in C, and hold no object for the garbage collector to examine.

What ranks have in common is read once. Names, dtypes and shapes (`TensorForms`) are equal on most ranks, and so are the sizes
of shards and their objects. Equal texts in two manifests become the same object (`ColumnCache`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise, repeat
from math import prod
from operator import add, le, sub
from typing import Any, NamedTuple, overload

from .entries import InvalidField, check_name, check_shape, itemsize_of
from .manifest import Chunk, ObjectEntry, TensorEntry, is_private

#: Texts that a cache keeps beside those that manifests repeat.
KEPT = 256
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
        if len({*self.names}) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InvalidField(f"tensor {twice!r} is listed twice")
        self.dtypes: tuple[str, ...] = tuple(dtypes)
        self.stored: tuple[str, ...] = tuple(stored)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(map(tuple, shapes))
        self.itemsizes = tuple(itemsizes)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, TensorForms)
            and (self.names, self.dtypes, self.stored, self.shapes)
            == (other.names, other.dtypes, other.stored, other.shapes)
        )

    def __hash__(self) -> int:
        return hash(self.names)


class ChunkLayout:
    """Where the numbers of each tensor and chunk of a run are in its columns.

    Args:
        forms: the tensors of the run.
        counts: the number of chunks of each tensor.
    """

    __slots__ = ("_follows", "_groups", "first", "forms", "itemsizes", "limits", "place")

    def __init__(self, forms: TensorForms, counts: Sequence[int]) -> None:
        self.forms = forms
        shapes = forms.shapes
        if len(counts) != len(shapes):
            raise InvalidField(f"{len(counts)} chunk counts for {len(shapes)} tensors")
        #: Index of the first chunk of each tensor, and behind the last.
        self.first = array("I", accumulate(counts, initial=0))
        #: Index of the first offset of each chunk in `offsets`, and of its first size in `sizes`.
        dims = chain.from_iterable(map(repeat, map(len, shapes), counts))
        self.place = array("I", accumulate(dims, initial=0))
        #: For each offset the size of its tensor in that dimension.
        self.limits = array("q", chain.from_iterable(chain.from_iterable(map(repeat, shapes, counts))))
        self.itemsizes = bytes(chain.from_iterable(map(repeat, forms.itemsizes, counts)))
        #: What follows from a column of sizes, by its identity: ranks have few different ones.
        self._follows: dict[int, _Follows] = {}
        self._groups: dict[int, tuple[array[int], list[tuple[int, int, int]]]] = {}

    def in_objects(self, objects: array[int]) -> Sequence[tuple[int, int, int]]:
        """Return each group of neighbouring chunks in one object: the object, the first chunk, and the one behind the last.

        Columns of objects that are one object are looked through once.
        """
        known = self._groups.get(id(objects))
        if known is None or known[0] is not objects:
            groups, at = [], 0
            for index, group in groupby(objects):
                end = at + sum(1 for _ in group)
                groups.append((index, at, end))
                at = end
            if len(self._groups) >= KEPT:
                self._groups.clear()
            known = self._groups[id(objects)] = (objects, groups)
        return known[1]

    def follows(self, sizes: array[int]) -> _Follows:
        """Return what follows from a column of sizes. It is computed once for columns that are one object."""
        known = self._follows.get(id(sizes))
        if known is None or known.sizes is not sizes:
            boxes = zip(pairwise(self.place), self.itemsizes, strict=True)
            nbytes = [prod(sizes[a:b]) * size for (a, b), size in boxes]
            valid = min(sizes, default=0) >= 0 and all(map(le, sizes, self.limits))
            known = _Follows(sizes, valid, [*map(sub, self.limits, sizes)], nbytes)
            if len(self._follows) >= KEPT:
                self._follows.clear()
            self._follows[id(sizes)] = known
        return known


class _Follows(NamedTuple):
    """What follows from a column of sizes."""

    sizes: array[int]
    #: No size is negative, or larger than its tensor.
    valid: bool
    #: The largest offset in each dimension of each chunk, with which it is inside its tensor.
    last: list[int]
    #: Bytes of each chunk.
    nbytes: list[int]


class TensorRun:
    """The columns of one rank for a run of tensors.

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
                start + layout.follows(self.sizes).nbytes[index],
                self.crc32s[index],
            ),
        )

    def equals(self, other: TensorRun) -> bool:
        """Return whether all columns have the same numbers, and those of the same tensors."""
        mine, theirs = self.layout, other.layout
        return (mine.forms, mine.first) == (theirs.forms, theirs.first) and all(
            getattr(self, name) == getattr(other, name)
            for name in ("offsets", "sizes", "objects", "starts", "crc32s")
        )

    def tensor(self, index: int) -> TensorEntry:
        """Return one tensor, by its index in the run."""
        forms, first = self.layout.forms, self.layout.first
        chunks = tuple([self.chunk(each) for each in range(first[index], first[index + 1])])
        return _new(
            TensorEntry,
            (forms.names[index], forms.dtypes[index], forms.shapes[index], chunks, forms.stored[index]),
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
        known = layout.follows(self.sizes)
        # A column of unsigned numbers has no negative one.
        signed = self.offsets.typecode != "I"
        if not known.valid or (signed and min(self.offsets, default=0) < 0):
            self._refuse_box()
        if not all(map(le, self.offsets, known.last)):
            self._refuse_box()
        if max(self.objects, default=-1) >= len(objects):
            raise InvalidField(
                f"a chunk refers to object {max(self.objects)}, but there are {len(objects)} objects"
            )
        ends = [*map(add, self.starts, known.nbytes)]
        for index, a, b in layout.in_objects(self.objects):
            if min(self.starts[a:b]) < objects[index].header or max(ends[a:b]) > objects[index].size:
                self._refuse_bytes(objects)

    def _tensors(self) -> Iterator[TensorEntry]:
        return map(self.tensor, range(len(self.layout.forms.names)))

    def _refuse_box(self) -> None:
        for entry in self._tensors():
            for chunk in entry.chunks:
                box = zip(chunk.offsets, chunk.sizes, entry.shape, strict=True)
                if any(a < 0 or n < 0 or a + n > limit for a, n, limit in box):
                    raise InvalidField(f"a chunk of tensor {entry.name!r} is outside its shape {entry.shape}")

    def _refuse_bytes(self, objects: Sequence[ObjectEntry]) -> None:
        for entry in self._tensors():
            for chunk in entry.chunks:
                at = objects[chunk.object]
                if not at.header <= chunk.start <= chunk.end <= at.size:
                    raise InvalidField(
                        f"a chunk of tensor {entry.name!r} at bytes {chunk.start} to {chunk.end} is "
                        f"outside its object's bytes {at.header} to {at.size}"
                    )


class TensorColumns(Sequence[TensorEntry]):
    """The tensors of one rank. Each item is made when it is asked for.

    Args:
        runs: the tensors in runs. Those of the rank alone are in runs of their own, since their names differ on each rank.
    """

    __slots__ = ("runs", "starts")

    def __init__(self, runs: tuple[TensorRun, ...]) -> None:
        self.runs = runs
        #: Index of the first tensor of each run, and behind the last.
        self.starts = [*accumulate((len(run.layout.forms.names) for run in runs), initial=0)]

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry]) -> TensorColumns:
        """Return the columns of these tensors. They must be valid: their boxes and bytes are not checked."""
        if isinstance(tensors, TensorColumns):
            return tensors
        cache = ColumnCache()
        runs = groupby(tensors, key=lambda each: is_private(each.name))
        return cls(tuple([_run_of([*run], cache) for _, run in runs]))

    def __len__(self) -> int:
        return self.starts[-1]

    def __iter__(self) -> Iterator[TensorEntry]:
        return chain.from_iterable(map(TensorRun._tensors, self.runs))

    @overload
    def __getitem__(self, index: int) -> TensorEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TensorEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> TensorEntry | tuple[TensorEntry, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        at = range(len(self))[index]
        run = bisect_right(self.starts, at) - 1
        return self.runs[run].tensor(at - self.starts[run])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TensorColumns) and all(map(TensorRun.equals, self.runs, other.runs)):
            return len(self.runs) == len(other.runs)  # most often: no item was made
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def _run_of(entries: Sequence[TensorEntry], cache: ColumnCache) -> TensorRun:
    forms = cache.forms(
        tuple(each.name for each in entries),
        tuple(each.dtype for each in entries),
        tuple(each.stored for each in entries),
        tuple(each.shape for each in entries),
    )
    chunks = [*chain.from_iterable(each.chunks for each in entries)]
    return TensorRun(
        cache.layout(forms, array("I", [len(each.chunks) for each in entries])),
        array("q", chain.from_iterable(chunk.offsets for chunk in chunks)),
        array("q", chain.from_iterable(chunk.sizes for chunk in chunks)),
        array("I", [chunk.object for chunk in chunks]),
        array("q", [chunk.start for chunk in chunks]),
        array("I", [chunk.crc32 for chunk in chunks]),
    )


class ColumnCache:
    """What manifests of one checkpoint have in common, kept once."""

    def __init__(self) -> None:
        self._forms: dict[tuple[tuple[Any, ...], ...], TensorForms] = {}
        self._layouts: dict[tuple[int, bytes], ChunkLayout] = {}

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

    def layout(self, forms: TensorForms, counts: array[int]) -> ChunkLayout:
        """Return the layout of these tensors, the same object for equal ones."""
        key = (id(forms), counts.tobytes())
        known = self._layouts.get(key)
        if known is None or known.forms is not forms:
            known = self._layouts[key] = ChunkLayout(forms, counts)
        return known
