"""Proof that a set of manifests is a checkpoint: all ranks are there and agree, and chunks tile each tensor.

Pure: manifests in, merged tensors out. This module asks no store whether an object exists.

The merge keeps the columns of each rank as they are, and makes the chunks of a tensor only when they are asked for: a restore
of one rank among 1,024 needs a thousandth of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import TypeAlias, overload

from ....providers.errors import CheckpointError
from .boxes import Box, common
from .columns import ChunkLayout, TensorColumns, TensorForms
from .manifest import Chunk, RankManifest

#: A chunk, its rank, and its index in the rank's columns.
_Placed: TypeAlias = tuple[Chunk, int, int]


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
        raise CheckpointError("no manifest of any rank is there")
    first = full[0]
    for manifest in full:
        for name in ("run_id", "attempt", "step", "save", "world", "level", "missing", "incarnation"):
            if (one := getattr(manifest, name)) != (other := getattr(first, name)):
                raise CheckpointError(
                    f"rank {manifest.rank} says {name} {one!r}, rank {first.rank} {other!r}"
                )
    ranks = [manifest.rank for manifest in full]
    if ranks != list(range(first.world)):
        missing = sorted(set(range(first.world)) - set(ranks))
        raise CheckpointError(
            f"manifests of {len(missing)} of {first.world} ranks are missing (rank {missing[0]} is the first)"
            if missing
            else f"rank {next(a for a, b in pairwise(ranks) if a == b)} is there twice"
        )
    return full


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """One tensor of the whole checkpoint: all chunks that the ranks wrote, in order of offsets, without duplicates."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str
    #: (rank, chunk); the chunk's `object` is an index into that rank's manifest.
    chunks: Sequence[tuple[int, Chunk]]

    def meeting(self, box: Box) -> Iterator[tuple[int, Chunk, Box]]:
        """Yield the chunks that have elements in this box, each with its rank and with the box of these elements."""
        chunks = self.chunks.near(box) if isinstance(self.chunks, ColumnChunks) else self.chunks
        for rank, chunk in chunks:
            if (met := common(box, Box(chunk.offsets, chunk.sizes))) is not None:
                yield rank, chunk, met


class ColumnChunks(Sequence[tuple[int, Chunk]]):
    """The chunks of one tensor, each made when it is asked for.

    Args:
        columns: the columns of all ranks.
        places: rank and index of each chunk.
    """

    def __init__(self, columns: Sequence[TensorColumns], places: Sequence[tuple[int, int]]) -> None:
        self._columns = columns
        self._places = places

    def near(self, box: Box) -> Iterator[tuple[int, Chunk]]:
        """Yield the chunks whose rows meet those of this box."""
        first = box.offsets[0] if box.sizes else 0
        end = first + box.sizes[0] if box.sizes else 0
        for rank, index in self._places:
            columns = self._columns[rank]
            if box.sizes:
                at = columns.layout.place[index]
                row = columns.offsets[at]
                if row >= end or row + columns.sizes[at] <= first:
                    continue
            yield rank, columns.chunk(index)

    @overload
    def __getitem__(self, index: int) -> tuple[int, Chunk]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, Chunk]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, Chunk] | list[tuple[int, Chunk]]:
        if isinstance(index, slice):
            return [(rank, self._columns[rank].chunk(at)) for rank, at in self._places[index]]
        rank, at = self._places[index]
        return rank, self._columns[rank].chunk(at)

    def __len__(self) -> int:
        return len(self._places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class _Run:
    """A run of tensors that several ranks describe in the same words."""

    forms: TensorForms
    #: Columns of each rank that has the run, the rank, and the index of the run's first tensor in its columns.
    members: list[tuple[TensorColumns, int, int]] = field(default_factory=list)

    def at_one_place(self) -> tuple[ChunkLayout, int] | None:
        """Return the layout and the index of the first tensor that all members have; None if they differ."""
        columns, _, at = self.members[0]
        same = all(other.layout is columns.layout and first == at for other, _, first in self.members)
        return (columns.layout, at) if same else None


class MergedTensors(Mapping[str, MergedTensor]):
    """The tensors of all manifests by name.

    Args:
        manifests: a full set, in order of ranks.

    Raises:
        CheckpointError: two ranks describe a tensor differently.
    """

    def __init__(self, manifests: Sequence[RankManifest]) -> None:
        self._columns = [TensorColumns.of(manifest.tensors) for manifest in manifests]
        runs: dict[TensorForms, _Run] = {}
        for rank, columns in enumerate(self._columns):
            for forms, at in zip(columns.layout.forms, columns.layout.starts, strict=False):
                runs.setdefault(forms, _Run(forms)).members.append((columns, rank, at))
        self._runs = [*runs.values()]
        #: For each tensor the runs that have it, with its index in the run.
        self._where: dict[str, list[tuple[_Run, int]]] = {}
        for run in self._runs:
            for index, name in enumerate(run.forms.names):
                self._where.setdefault(name, []).append((run, index))
        #: The tensor that was asked for last: callers ask for one several times.
        self._last: MergedTensor | None = None
        #: Rank and index of each chunk, for tensors whose chunks are not simply those of the ranks in order.
        self._order: dict[str, tuple[array[int], array[int]]] = {}

    def prove(self) -> None:
        """Prove that the chunks cover each tensor. Each element must be covered once, or several times with the same bytes.

        Raises:
            CheckpointError: ranks describe a tensor differently, elements are in no chunk, or chunks overlap without being
                the same.
        """
        for run in self._runs:
            place = run.at_one_place()
            rows = None if place is None else _RowTiling(run, *place)
            for index, name in enumerate(run.forms.names):
                where = self._where[name]
                if where[0][0] is not run:
                    continue  # proved with the first run that has it
                if len(where) > 1:
                    self._agree(name, where)
                elif rows is not None and rows.tile(index):
                    continue
                self._prove(name)

    def _agree(self, name: str, where: list[tuple[_Run, int]]) -> None:
        first, at = where[0]
        one = first.forms.dtypes[at], first.forms.stored[at], first.forms.shapes[at]
        for run, index in where[1:]:
            forms, rank = run.forms, run.members[0][1]
            other = forms.dtypes[index], forms.stored[index], forms.shapes[index]
            if other != one:
                raise CheckpointError(
                    f"tensor {name!r} is {other[0]}{list(other[2])} for rank {rank}, {one[0]}{list(one[2])} for another"
                )

    def _prove(self, name: str) -> None:
        run, index = self._where[name][0]
        shape = run.forms.shapes[index]
        placed = [(self._columns[rank].chunk(at), rank, at) for rank, at in self._places(name)]
        kept = _distinct(name, placed)
        whole = prod(shape)
        covered = sum([prod(chunk.sizes) for chunk, _, _ in kept])
        if covered < whole:
            raise CheckpointError(f"tensor {name!r} has {whole - covered} of {whole} elements in no chunk")
        if covered > whole or (len(kept) > 1 and _overlap(kept)):
            raise CheckpointError(f"tensor {name!r} has chunks that overlap without being the same")
        if kept != placed:
            ranks, indices = array("I", [each[1] for each in kept]), array("I", [each[2] for each in kept])
            self._order[name] = ranks, indices

    def _places(self, name: str) -> list[tuple[int, int]]:
        """Return the rank and the index of each chunk, in order of ranks or as `prove` has put them."""
        if (order := self._order.get(name)) is not None:
            return [*zip(*order, strict=True)]
        places = [
            (rank, chunk)
            for run, index in self._where[name]
            for columns, rank, at in run.members
            for chunk in range(columns.layout.first[at + index], columns.layout.first[at + index + 1])
        ]
        return places if len(self._where[name]) == 1 else sorted(places)

    def __getitem__(self, name: str) -> MergedTensor:
        if (last := self._last) is None or last.name != name:
            run, index = self._where[name][0]
            forms, chunks = run.forms, ColumnChunks(self._columns, self._places(name))
            last = self._last = MergedTensor(
                name, forms.dtypes[index], forms.shapes[index], forms.stored[index], chunks
            )
        return last

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


class _RowTiling:
    """The check for the simplest and most common tiling: whole rows, rank after rank, from the first to the last.

    Args:
        run: tensors that several ranks have.
        layout: the layout of their columns.
        at: index of the first tensor in the columns.
    """

    def __init__(self, run: _Run, layout: ChunkLayout, at: int) -> None:
        self._shapes = run.forms.shapes
        self._layout = layout
        self._at = at
        self._offsets = [columns.offsets for columns, _, _ in run.members]
        self._sizes = [columns.sizes for columns, _, _ in run.members]
        #: Columns that are not one object: ranks whose shards have the same sizes have the same column.
        self._unlike = [*{id(sizes): sizes for sizes in self._sizes}.values()]

    def tile(self, index: int) -> bool:
        """Return whether the tensor at this index is tiled so. Its chunks are in order then."""
        shape, chunk = self._shapes[index], self._layout.first[self._at + index]
        if not shape or self._layout.first[self._at + index + 1] != chunk + 1:
            return False
        place = self._layout.place[chunk]
        for dim in range(1, len(shape)):
            if max([offsets[place + dim] for offsets in self._offsets]):
                return False
            if any(sizes[place + dim] != shape[dim] for sizes in self._unlike):
                return False
        rows = [sizes[place] for sizes in self._sizes]
        ends = [*accumulate(rows)]
        firsts = [offsets[place] for offsets in self._offsets]
        return firsts[0] == 0 and firsts[1:] == ends[:-1] and ends[-1] == shape[0] and all(rows)


def _distinct(name: str, placed: Sequence[_Placed]) -> list[_Placed]:
    """Return the chunks sorted by offsets, with equal boxes of replicas once, and without empty boxes.

    Raises:
        CheckpointError: replicas disagree in bytes.
    """
    kept: list[_Placed] = []
    # A stable sort of the tuples themselves: by offsets first.
    last: Chunk | None = None
    for each in sorted(placed, key=_offsets_and_sizes):
        chunk, rank, _ = each
        if 0 in chunk.sizes:
            continue
        if last is not None and last.offsets == chunk.offsets and last.sizes == chunk.sizes:
            if last.crc32 != chunk.crc32:
                raise CheckpointError(
                    f"tensor {name!r} at {list(chunk.offsets)} has other bytes from rank {rank}"
                )
            continue
        kept.append(each)
        last = chunk
    return kept


def _offsets_and_sizes(placed: _Placed) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    return placed[0][:2]


def _overlap(chunks: Sequence[_Placed]) -> bool:
    """Whether two boxes share an element.

    The sweep runs along the dimension with the most distinct offsets. (A 0-d tensor has one box: all of them are
    the same.)
    """
    boxes = [(chunk.offsets, chunk.sizes) for chunk, _, _ in chunks]
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
