"""Proof that a set of manifests is a checkpoint: all ranks are there and agree, and chunks tile each tensor.

Pure: manifests in, merged tensors out. This module asks no store whether an object exists.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod

from ....providers.errors import CheckpointError
from .entries import DescribedTensor
from .manifest import Chunk, RankManifest, TensorEntry, collector_at_rest


@dataclass(slots=True)
class MergedTensor:
    """One tensor of the whole checkpoint: all chunks that the ranks wrote, in order of offsets, without duplicates."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str
    #: (rank, chunk); the chunk's `object` is an index into that rank's manifest.
    chunks: list[tuple[int, Chunk]]


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
    tensors: dict[str, MergedTensor] = {}
    with collector_at_rest():
        _merge(full, tensors)
        for merged in tensors.values():
            tile(merged)
    return Coverage(full, tensors)


def _merge(full: tuple[RankManifest, ...], tensors: dict[str, MergedTensor]) -> None:
    for manifest in full:
        rank = manifest.rank
        for name, dtype, shape, chunks, stored in manifest.tensors:
            merged = tensors.get(name)
            if merged is None:
                merged = tensors[name] = MergedTensor(name, dtype, shape, stored, [])
            elif merged.dtype != dtype or merged.shape != shape or merged.stored != stored:
                raise disagree(rank, name, dtype, shape, merged)
            for chunk in chunks:
                merged.chunks.append((rank, chunk))


def disagree(
    rank: int, name: str, dtype: str, shape: tuple[int, ...], merged: MergedTensor
) -> CheckpointError:
    """Return the error for a tensor that this rank describes differently from the ranks before it."""
    return CheckpointError(
        f"tensor {name!r} is {dtype}{list(shape)} for rank {rank}, "
        f"{merged.dtype}{list(merged.shape)} for another"
    )


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


def tile(tensor: MergedTensor) -> None:
    """Prove that the chunks cover the tensor, and sort them.

    Each element must be covered once, or several times with the same bytes.

    Raises:
        CheckpointError: elements are in no chunk, or chunks overlap without being the same.
    """
    if _in_rows(tensor):
        return
    chunks = tensor.chunks = _distinct(tensor.name, tensor.chunks)
    whole = prod(tensor.shape)
    covered = sum([prod(chunk.sizes) for _, chunk in chunks])
    if covered < whole:
        raise CheckpointError(f"tensor {tensor.name!r} has {whole - covered} of {whole} elements in no chunk")
    if covered > whole or (len(chunks) > 1 and _overlap(chunks)):
        raise CheckpointError(f"tensor {tensor.name!r} has chunks that overlap without being the same")


def _in_rows(tensor: MergedTensor) -> bool:
    """Whether the tiling is the simplest and most common one: whole rows, rank after rank, from first to last."""
    if not tensor.shape:
        return len(tensor.chunks) == 1
    rest = tensor.shape[1:]
    corner = (0,) * len(rest)
    row = 0
    for _, chunk in tensor.chunks:
        offsets, sizes = chunk[:2]
        if offsets[0] != row or not sizes[0] or sizes[1:] != rest or offsets[1:] != corner:
            return False
        row += sizes[0]
    return row == tensor.shape[0]


def _distinct(name: str, chunks: Sequence[tuple[int, Chunk]]) -> list[tuple[int, Chunk]]:
    """Return the chunks sorted by offsets, with equal boxes of replicas once, and without empty boxes.

    Raises:
        CheckpointError: replicas disagree in bytes.
    """
    kept: list[tuple[int, Chunk]] = []
    # A stable sort of the tuples themselves: by offsets first.
    last: Chunk | None = None
    for rank, chunk in sorted(chunks, key=_offsets_and_sizes):
        if 0 in chunk.sizes:
            continue
        if last is not None and last.offsets == chunk.offsets and last.sizes == chunk.sizes:
            if last.crc32 != chunk.crc32:
                raise CheckpointError(
                    f"tensor {name!r} at {list(chunk.offsets)} has other bytes from rank {rank}"
                )
            continue
        kept.append((rank, chunk))
        last = chunk
    return kept


def _offsets_and_sizes(placed: tuple[int, Chunk]) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    return placed[1][:2]


def _overlap(chunks: Sequence[tuple[int, Chunk]]) -> bool:
    """Whether two boxes share an element.

    The sweep runs along the dimension with the most distinct offsets. (A 0-d tensor has one box: all of them are
    the same.)
    """
    boxes = [(chunk.offsets, chunk.sizes) for _, chunk in chunks]
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


# --- manifests one after the other ---
#
# The same proof as `coverage`, for manifests that are read and dropped one after the other.
#
# A rank that commits for all others does so beside training, on a thread. All manifests of 128 ranks at once are two
# million values. The garbage collector, which must not be switched off there, would examine them and all of
# training's objects again and again. That took 5 s of 7, each time with the GIL held (measured). So a chunk is kept
# as its numbers in an array, which the collector never examines. Only one tensor at a time is built again.

#: Constructor of a NamedTuple, as in `entries`.
_new = tuple.__new__
#: Count of the fixed numbers of a chunk: rank, object, start, end, crc32. Its offsets and sizes follow.
_FIXED = 5


@dataclass(slots=True)
class StreamingCoverage:
    """Manifests of one checkpoint, added one by one. The order of ranks is the fastest."""

    #: Manifests by rank, without their tensors and state.
    manifests: dict[int, RankManifest] = field(default_factory=dict)
    #: Descriptions for `open_manifest`, from all manifests added here.
    known: dict[str, DescribedTensor] = field(default_factory=dict)
    _tensors: dict[str, tuple[MergedTensor, array[int]]] = field(default_factory=dict)

    def add(self, manifest: RankManifest, tensors: Iterable[TensorEntry]) -> None:
        """Add one manifest. After an error, this object proves nothing any more.

        Raises:
            CheckpointError: one of its tensors differs from an earlier manifest's. Errors of `tensors` pass
                through.
        """
        rank, known = manifest.rank, self._tensors
        for name, dtype, shape, chunks, stored in tensors:
            entry = known.get(name)
            if entry is None:
                entry = known[name] = (MergedTensor(name, dtype, shape, stored, []), array("q"))
            merged, numbers = entry
            if merged.dtype != dtype or merged.shape != shape or merged.stored != stored:
                raise disagree(rank, name, dtype, shape, merged)
            for offsets, sizes, index, start, end, crc32 in chunks:
                numbers.extend((rank, index, start, end, crc32, *offsets, *sizes))
        self.manifests[rank] = replace(manifest, tensors=(), state={})

    def check(self) -> None:
        """Raise CheckpointError if the manifests are not a whole checkpoint, as `coverage` does."""
        full_set(self.manifests.values())
        for merged, numbers in self._tensors.values():
            if _columns_in_rows(merged.shape, numbers):
                continue
            chunks = _chunks(numbers, len(merged.shape))
            tile(MergedTensor(merged.name, merged.dtype, merged.shape, merged.stored, chunks))


def _columns_in_rows(shape: tuple[int, ...], numbers: array[int]) -> bool:
    """Whether these are whole rows, one chunk after the other, from the first to the last.

    `coverage` asks the same first; here the input is columns of numbers.
    """
    dims = len(shape)
    if not dims:
        return False
    columns = [numbers[at :: _FIXED + 2 * dims] for at in range(_FIXED, _FIXED + 2 * dims)]
    offsets, sizes = columns[:dims], columns[dims:]
    ends = [0, *accumulate(sizes[0])]
    return (
        ends[-1] == shape[0]
        and all(sizes[0])
        and offsets[0].tolist() == ends[:-1]
        and not any(map(any, offsets[1:]))
        and all(set(column) <= {size} for column, size in zip(sizes[1:], shape[1:], strict=True))
    )


def _chunks(numbers: array[int], dims: int) -> list[tuple[int, Chunk]]:
    width = _FIXED + 2 * dims
    flat = numbers.tolist()
    chunks = []
    for at in range(0, len(flat), width):
        rank, index, start, end, crc32, *box = flat[at : at + width]
        fields = (tuple(box[:dims]), tuple(box[dims:]), index, start, end, crc32)
        chunks.append((rank, _new(Chunk, fields)))
    return chunks
