"""Which part of a tensor one rank of a mesh holds: pure arithmetic, and so the same on every rank for every rank.

DTensor cuts from left to right: each mesh dimension cuts what those before it have left. `Shard` cuts as `torch.chunk`
does. `_StridedShard` cuts in pieces first and each piece among the ranks: so fully_shard says of a weight that tensor
parallel had cut before that the rank's rows are not where left to right would put them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...checkpoint.format.boxes import Box

#: Rows [start, end) of a dimension, in order: what one rank holds of it.
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MeshCut:
    """How one mesh dimension cuts the tensor."""

    #: The tensor's dimension.
    dim: int
    #: Pieces that are cut each by itself: 1 for `Shard`, the split factor for `_StridedShard`.
    pieces: int = 1


def box(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], cuts: Sequence[MeshCut | None]
) -> Box | None:
    """The part of the rank at `coordinate`; None where it is no box, but rows from here and there.

    Args:
        shape: the whole tensor's.
        mesh: ranks along each dimension of the mesh.
        coordinate: the rank's place in it.
        cuts: for each dimension of the mesh; None where it holds replicas.
    """
    held: list[Rows] = [((0, size),) for size in shape]
    for ranks, at, cut in zip(mesh, coordinate, cuts, strict=True):
        if cut is not None:
            held[cut.dim] = _strided(held[cut.dim], ranks, at, cut.pieces)
    if any(len(rows) > 1 for rows in held):
        return None
    spans = [rows[0] if rows else (0, 0) for rows in held]
    return Box(tuple(start for start, _ in spans), tuple(end - start for start, end in spans))


def _strided(rows: Rows, ranks: int, at: int, pieces: int) -> Rows:
    found: list[tuple[int, int]] = []
    for piece in range(pieces):
        for start, end in _chunk(_chunk(rows, pieces, piece), ranks, at):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
    return tuple(found)


def _chunk(rows: Rows, chunks: int, index: int) -> Rows:
    """One of the chunks that `torch.chunk` makes of these rows: the last ones may be small, or empty."""
    count = sum(end - start for start, end in rows)
    size = -(-count // chunks)
    first, last = min(count, index * size), min(count, (index + 1) * size)
    found: list[tuple[int, int]] = []
    passed = 0
    for start, end in rows:
        low, high = max(first - passed, 0), min(last - passed, end - start)
        if low < high:
            found.append((start + low, start + high))
        passed += end - start
    return tuple(found)
