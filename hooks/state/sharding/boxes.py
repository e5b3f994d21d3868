"""Which part of a tensor one rank of a mesh holds.

This is pure arithmetic, so every rank computes the same answer for every rank.

DTensor cuts from left to right: each mesh dimension cuts the part that the dimensions before it have left. `Shard`
cuts as `torch.chunk` does. `_StridedShard` first cuts into pieces, and then cuts each piece among the ranks.
`fully_shard` uses it for a weight that tensor parallel has already cut: the rank's rows are then not where a
left-to-right cut would put them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...checkpoint.format.boxes import Box

#: Rows [start, end) of a dimension that one rank holds, in order.
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MeshCut:
    """How one mesh dimension cuts the tensor."""

    #: The tensor's dimension.
    dim: int
    #: The number of pieces that are cut separately: 1 for `Shard`, the split factor for `_StridedShard`.
    pieces: int = 1


def box(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], cuts: Sequence[MeshCut | None]
) -> Box | None:
    """Return the part of the rank at `coordinate`; None if its rows are not contiguous, so that the part is not a box.

    Args:
        shape: the shape of the global tensor.
        mesh: the number of ranks along each dimension of the mesh.
        coordinate: the rank's place in the mesh.
        cuts: the cut of each dimension of the mesh; None for a dimension of replicas.
    """
    rows_of: list[Rows] = [((0, size),) for size in shape]
    for ranks, at, cut in zip(mesh, coordinate, cuts, strict=True):
        if cut is not None:
            rows_of[cut.dim] = _strided(rows_of[cut.dim], ranks, at, cut.pieces)
    if any(len(rows) > 1 for rows in rows_of):
        return None
    spans = [rows[0] if rows else (0, 0) for rows in rows_of]
    return Box(tuple(start for start, _ in spans), tuple(end - start for start, end in spans))


def _strided(rows: Rows, ranks: int, at: int, pieces: int) -> Rows:
    spans: list[tuple[int, int]] = []
    for piece in range(pieces):
        for start, end in _chunk(_chunk(rows, pieces, piece), ranks, at):
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
    return tuple(spans)


def _chunk(rows: Rows, chunks: int, index: int) -> Rows:
    """Return one of the chunks that `torch.chunk` makes of these rows. The last chunks may be small, or empty."""
    count = sum(end - start for start, end in rows)
    size = -(-count // chunks)
    first, last = min(count, index * size), min(count, (index + 1) * size)
    spans: list[tuple[int, int]] = []
    passed = 0
    for start, end in rows:
        low, high = max(first - passed, 0), min(last - passed, end - start)
        if low < high:
            spans.append((start + low, start + high))
        passed += end - start
    return tuple(spans)
