"""Proof that a set of manifests is a checkpoint: all ranks are there and agree, and chunks tile each tensor.

Pure: manifests in, merged tensors out. This module asks no store whether an object exists.

The merge keeps the columns of each rank as they are, and makes the chunks of a tensor only when they are asked for: a restore
of one rank among 1,024 needs a thousandth of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import TypeAlias, overload

from ....providers.errors import CheckpointError
from .boxes import Box, common
from .columns import TensorColumns, TensorForms, TensorRun
from .manifest import Chunk, RankManifest

#: The rank of a chunk, the columns that it is in, and its index there.
_Place: TypeAlias = tuple[int, TensorRun, int]
#: A chunk with its place.
_Placed: TypeAlias = tuple[Chunk, int, TensorRun, int]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Full set of manifests, in order of ranks, that agree and tile every tensor."""

    manifests: tuple[RankManifest, ...]
    tensors: Mapping[str, MergedTensor]


def coverage(manifests: Iterable[RankManifest]) -> Coverage:
    """Merge the manifests of all ranks of one checkpoint.

    Raises:
        CheckpointError: a rank is missing, two manifests do not belong together, or a tensor is not tiled.
    """
    full = full_set(manifests)
    tensors = MergedTensors(full)
    tensors.prove()
    return Coverage(full, tensors)


def full_set(manifests: Iterable[RankManifest]) -> tuple[RankManifest, ...]:
    """Return the manifests in order of ranks.

    Raises:
        CheckpointError: a rank is missing or there twice, or they are not all of one save of one process group.
    """
    full = tuple(sorted(manifests, key=lambda manifest: manifest.rank))
    if not full:
        raise CheckpointError("there is no manifest of any rank")
    first = full[0]
    for manifest in full:
        for name in ("run_id", "attempt", "step", "save", "world", "level", "missing", "incarnation"):
            if (one := getattr(manifest, name)) != (other := getattr(first, name)):
                raise CheckpointError(
                    f"rank {manifest.rank} records {name} {one!r}, but rank {first.rank} records {other!r}"
                )
    ranks = [manifest.rank for manifest in full]
    if ranks != list(range(first.world)):
        missing = sorted(set(range(first.world)) - set(ranks))
        raise CheckpointError(
            f"manifests of {len(missing)} of {first.world} ranks are missing (rank {missing[0]} is the first)"
            if missing
            else f"rank {next((a for a, b in pairwise(ranks) if a == b))} appears twice"
        )
    return full


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """One tensor of the complete checkpoint: all chunks that the ranks wrote, in order of offsets, without duplicates."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str
    #: (rank, chunk); the chunk's `object` is an index into that rank's manifest.
    chunks: Sequence[tuple[int, Chunk]]

    def meeting(self, box: Box) -> Iterator[tuple[int, Chunk, Box]]:
        """Yield the chunks that have elements in this box, each with its rank and with the box of these elements."""
        for rank, chunk in self.chunks.near(box) if isinstance(self.chunks, _Chunks) else self.chunks:
            if (met := common(box, Box(chunk.offsets, chunk.sizes))) is not None:
                yield rank, chunk, met


class _Chunks(Sequence[tuple[int, Chunk]]):
    """The chunks of one tensor, each made when it is asked for. Subclasses say where each is."""

    def place(self, index: int) -> _Place:
        """Return where the chunk at this index is."""
        raise NotImplementedError

    def near(self, box: Box) -> Iterator[tuple[int, Chunk]]:
        """Yield the chunks that may have elements in this box: all that do, and perhaps others."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> tuple[int, Chunk]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, Chunk]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, Chunk] | list[tuple[int, Chunk]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        rank, columns, at = self.place(range(len(self))[index])
        return rank, columns.chunk(at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]


class ListedChunks(_Chunks):
    """Chunks anywhere in the tensor.

    Args:
        places: the place of each.
    """

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def place(self, index: int) -> _Place:
        return self._places[index]

    def near(self, box: Box) -> Iterator[tuple[int, Chunk]]:
        first = box.offsets[0] if box.sizes else 0
        end = first + box.sizes[0] if box.sizes else 0
        for rank, columns, index in self._places:
            if box.sizes:
                at = columns.layout.place[index]
                row = columns.offsets[at]
                if row >= end or row + columns.sizes[at] <= first:
                    continue
            yield rank, columns.chunk(index)


class RowChunks(_Chunks):
    """Chunks of whole rows, one of each rank, rank after rank.

    Args:
        run: the tensors of which it is one.
        index: its index in the run.
    """

    def __init__(self, run: _Run, index: int) -> None:
        self._run = run
        self._index = index

    def __len__(self) -> int:
        return len(self._run.ranks)

    def place(self, index: int) -> _Place:
        columns = self._run.columns[index]
        return self._run.ranks[index], columns, columns.layout.first[self._index]

    def near(self, box: Box) -> Iterator[tuple[int, Chunk]]:
        columns, first = self._run.columns, box.offsets[0]
        # The last chunk that begins at the box's first row or before it, by as many steps as 4,096 has bits.
        index = bisect_right(columns, first, key=self._row) - 1
        while index < len(columns) and self._row(columns[index]) < first + box.sizes[0]:
            yield self[index]
            index += 1

    def _row(self, columns: TensorRun) -> int:
        return columns.offsets[columns.layout.place[columns.layout.first[self._index]]]


@dataclass(slots=True)
class _Run:
    """A run of tensors that several ranks describe in the same words."""

    forms: TensorForms
    #: The ranks that have the run, in order, and the columns of each.
    ranks: list[int] = field(default_factory=list)
    columns: list[TensorRun] = field(default_factory=list)


class MergedTensors(Mapping[str, MergedTensor]):
    """The tensors of all manifests by name.

    Args:
        manifests: a full set, in order of ranks.
    """

    def __init__(self, manifests: Sequence[RankManifest]) -> None:
        runs: dict[TensorForms, _Run] = {}
        for rank, manifest in enumerate(manifests):
            for columns in TensorColumns.of(manifest.tensors).runs:
                run = runs.setdefault(columns.layout.forms, _Run(columns.layout.forms))
                run.ranks.append(rank)
                run.columns.append(columns)
        self._runs = [*runs.values()]
        #: For each tensor the runs that have it, with its index in the run.
        self._where: dict[str, list[tuple[_Run, int]]] = {}
        for run in self._runs:
            for index, name in enumerate(run.forms.names):
                self._where.setdefault(name, []).append((run, index))
        #: The tensor that was asked for last: callers ask for one several times.
        self._last: MergedTensor | None = None
        #: The tensors that `RowChunks` describes.
        self._in_rows: set[str] = set()
        #: The chunks of tensors that are not simply those of the ranks in order: without duplicates, by their offsets.
        self._sorted: dict[str, list[_Place]] = {}

    def prove(self) -> None:
        """Prove that the chunks cover each tensor. Each element must be covered once, or several times with the same bytes.

        Raises:
            CheckpointError: ranks describe a tensor differently, elements are in no chunk, or chunks overlap without being
                the same.
        """
        for run in self._runs:
            rows = _RowTiling(run)
            for index, name in enumerate(run.forms.names):
                where = self._where[name]
                if where[0][0] is not run:
                    continue  # proved with the first run that has it
                if len(where) > 1:
                    _agree(name, where)
                elif rows.holds(index):
                    self._in_rows.add(name)
                    continue
                self._prove(name)

    def _prove(self, name: str) -> None:
        run, index = self._where[name][0]
        shape = run.forms.shapes[index]
        places = self._places(name)
        kept = _distinct(name, [(columns.chunk(at), rank, columns, at) for rank, columns, at in places])
        whole = prod(shape)
        covered = sum([prod(chunk.sizes) for chunk, *_ in kept])
        if covered < whole:
            raise CheckpointError(f"tensor {name!r}: {whole - covered} of {whole} elements are in no chunk")
        if covered > whole or (len(kept) > 1 and _overlap([chunk for chunk, *_ in kept])):
            raise CheckpointError(f"tensor {name!r} has chunks that overlap but are not equal")
        if (ordered := [(rank, columns, at) for _, rank, columns, at in kept]) != places:
            self._sorted[name] = ordered

    def _places(self, name: str) -> list[_Place]:
        """Return the place of each chunk, in order of ranks or as `prove` has put them."""
        if (known := self._sorted.get(name)) is not None:
            return known
        where = self._where[name]
        places = [
            (rank, columns, chunk)
            for run, index in where
            for rank, columns in zip(run.ranks, run.columns, strict=True)
            for chunk in range(columns.layout.first[index], columns.layout.first[index + 1])
        ]
        return places if len(where) == 1 else sorted(places, key=lambda place: place[0])

    def __getitem__(self, name: str) -> MergedTensor:
        if (last := self._last) is None or last.name != name:
            run, index = self._where[name][0]
            forms = run.forms
            chunks = RowChunks(run, index) if name in self._in_rows else ListedChunks(self._places(name))
            last = self._last = MergedTensor(
                name, forms.dtypes[index], forms.shapes[index], forms.stored[index], chunks
            )
        return last

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _agree(name: str, where: list[tuple[_Run, int]]) -> None:
    first, at = where[0]
    one = first.forms.dtypes[at], first.forms.stored[at], first.forms.shapes[at]
    for run, index in where[1:]:
        forms, rank = run.forms, run.ranks[0]
        other = forms.dtypes[index], forms.stored[index], forms.shapes[index]
        if other != one:
            raise CheckpointError(
                f"tensor {name!r} is {other[0]}{list(other[2])} on rank {rank}, but "
                f"{one[0]}{list(one[2])} on another rank"
            )


class _RowTiling:
    """The check for the simplest and most common tiling: whole rows, rank after rank, from the first to the last.

    Args:
        run: tensors that several ranks have.
    """

    def __init__(self, run: _Run) -> None:
        self._shapes = run.forms.shapes
        self._layouts = [columns.layout for columns in run.columns]
        self._offsets = [columns.offsets for columns in run.columns]
        self._sizes = [columns.sizes for columns in run.columns]
        #: Columns of sizes without repetitions: most ranks have the same one.
        self._different = [*{id(sizes): sizes for sizes in self._sizes}.values()]
        one = self._layouts[0]
        #: The layout of all ranks; None if some write tensors that others do not.
        self._layout = one if all(each is one or each.first == one.first for each in self._layouts) else None

    def holds(self, index: int) -> bool:
        """Return whether the tensor at this index of the run is tiled so. Its chunks are in order then."""
        shape = self._shapes[index]
        if not shape or (places := self._places(index)) is None:
            return False
        firsts = [offsets[place] for offsets, place in zip(self._offsets, places)]  # noqa: B905 - twice as fast
        if self._layout is not None and len(self._different) == 1:
            rows = [self._different[0][places[0]]] * len(places)
        else:
            rows = [sizes[place] for sizes, place in zip(self._sizes, places)]  # noqa: B905
        ends = [*accumulate(rows)]
        if firsts[0] or firsts[1:] != ends[:-1] or ends[-1] != shape[0] or not all(rows):
            return False
        for dim in range(1, len(shape)):
            if max([offsets[place + dim] for offsets, place in zip(self._offsets, places)]):  # noqa: B905
                return False
            if self._layout is not None:
                widths = {sizes[places[0] + dim] for sizes in self._different}
            else:
                widths = {sizes[place + dim] for sizes, place in zip(self._sizes, places, strict=True)}
            if widths != {shape[dim]}:
                return False
        return True

    def _places(self, index: int) -> Sequence[int] | None:
        """Return where each rank's chunk is in its columns; None if a rank has no chunk, or several."""
        if (layout := self._layout) is not None:
            first = layout.first[index]
            one = layout.first[index + 1] == first + 1
            return [layout.place[first]] * len(self._layouts) if one else None
        chunks = [each.first[index] for each in self._layouts]
        if [each.first[index + 1] for each in self._layouts] != [chunk + 1 for chunk in chunks]:
            return None
        return [each.place[chunk] for each, chunk in zip(self._layouts, chunks, strict=True)]


def _distinct(name: str, placed: Sequence[_Placed]) -> list[_Placed]:
    """Return the chunks sorted by offsets, with equal boxes of replicas once, and without empty boxes.

    Raises:
        CheckpointError: replicas disagree in bytes.
    """
    kept: list[_Placed] = []
    # A stable sort of the tuples themselves: by offsets first.
    last: Chunk | None = None
    for each in sorted(placed, key=_offsets_and_sizes):
        chunk, rank = each[:2]
        if 0 in chunk.sizes:
            continue
        if last is not None and last.offsets == chunk.offsets and last.sizes == chunk.sizes:
            if last.crc32 != chunk.crc32:
                raise CheckpointError(
                    f"tensor {name!r} at {list(chunk.offsets)}: the bytes of rank {rank} differ from "
                    "another rank's"
                )
            continue
        kept.append(each)
        last = chunk
    return kept


def _offsets_and_sizes(placed: _Placed) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    return placed[0][:2]


def _overlap(chunks: Sequence[Chunk]) -> bool:
    """Whether two boxes share an element.

    The sweep runs along the dimension with the most distinct offsets. (A 0-d tensor has one box: all of them are
    the same.)
    """
    boxes = [(chunk.offsets, chunk.sizes) for chunk in chunks]
    spread = [len({offsets[dim] for offsets, _ in boxes}) for dim in range(len(boxes[0][0]))]
    dim = spread.index(max(spread))
    boxes.sort(key=lambda box: box[0][dim])
    active: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for offsets, sizes in boxes:
        start = offsets[dim]
        active = [box for box in active if box[0][dim] + box[1][dim] > start]
        if active and any(_intersect(offsets, sizes, *box) for box in active):
            return True
        active.append((offsets, sizes))
    return False


def _intersect(
    offsets: tuple[int, ...], sizes: tuple[int, ...], others: tuple[int, ...], their: tuple[int, ...]
) -> bool:
    return all(a < c + d and c < a + b for a, b, c, d in zip(offsets, sizes, others, their, strict=True))
