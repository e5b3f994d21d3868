"""Proof that a set of manifests is a checkpoint: all ranks are there and agree, and chunks tile each tensor.

Pure: manifests in, merged tensors out. This module asks no store whether an object exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ....providers.errors import CheckpointError
from .manifest import Chunk, RankManifest, collector_at_rest


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
        for field in ("run_id", "attempt", "step", "save", "world", "level", "missing", "incarnation"):
            if (one := getattr(manifest, field)) != (other := getattr(first, field)):
                raise CheckpointError(
                    f"rank {manifest.rank} says {field} {one!r}, rank {first.rank} {other!r}"
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
