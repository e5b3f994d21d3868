"""Which part of a tensor a rank holds: against torch's own cutting, for every rank."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from spotguard.hooks.checkpoint.format.boxes import Box
from spotguard.hooks.state.sharding.boxes import MeshCut, box
from tests.cases import cases

pytestmark = pytest.mark.torch

SHAPES = [(8, 4), (7, 5), (3, 9), (1, 6), (0, 4), (5, 2)]


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def part(tensor: torch.Tensor, where: Box) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(where.offsets, where.sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def chunk(tensor: torch.Tensor, count: int, index: int, dim: int) -> torch.Tensor:
    """As `torch.chunk`, that makes fewer chunks of what is too small; the rest are empty."""
    chunks = torch.chunk(tensor, count, dim)
    return chunks[index] if index < len(chunks) else tensor.narrow(dim, 0, 0)


@cases("shape", SHAPES)
@cases("ranks", [2, 3, 4, 6])
@cases("dim", [0, 1])
def test_one_cut_is_a_chunk(shape: tuple[int, int], ranks: int, dim: int) -> None:
    whole = numbered(shape)
    for at in range(ranks):
        found = box(shape, [ranks], [at], [MeshCut(dim)])
        assert found is not None
        assert torch.equal(part(whole, found), chunk(whole, ranks, at, dim))


@cases("shape", SHAPES)
@cases("mesh", [(2, 2), (2, 3), (3, 2)])
@cases("first, second", list(product([0, 1, None], repeat=2)))
def test_cuts_follow_each_other_from_left_to_right(
    shape: tuple[int, int], mesh: tuple[int, int], first: int | None, second: int | None
) -> None:
    """Of both, the same dimension twice, and of replicas in between."""
    cuts = [None if dim is None else MeshCut(dim) for dim in (first, second)]
    for coordinate in product(*map(range, mesh)):
        expected = numbered(shape)
        for cut, ranks, at in zip(cuts, mesh, coordinate, strict=True):
            expected = expected if cut is None else chunk(expected, ranks, at, cut.dim)
        found = box(shape, mesh, coordinate, cuts)
        assert found is not None
        assert torch.equal(part(numbered(shape), found), expected)


@pytest.mark.parametrize("mesh", [(2, 2), (2, 4), (4, 2), (3, 3)])
def test_rows_cut_by_tensor_parallel_first_and_then_by_fully_shard(mesh: tuple[int, int]) -> None:
    """The mesh says them in the other order: the strided cut puts it right, and torch counts it the same. (9 rows over
    4 by 2 it describes wrongly: as no box, or of another size than the shard is. So that shard is refused.)"""
    placements = (_StridedShard(0, split_factor=mesh[1]), Shard(0))
    for rows, data, tensor in product(range(1, 34), range(mesh[0]), range(mesh[1])):
        found = box((rows, 3), mesh, (data, tensor), [MeshCut(0, mesh[1]), MeshCut(0)])
        if found is None:
            assert rows % (mesh[0] * mesh[1])
            continue
        mine = chunk(chunk(numbered((rows, 3)), mesh[1], tensor, 0), mesh[0], data, 0)
        if found.sizes == tuple(mine.shape):
            assert torch.equal(part(numbered((rows, 3)), found), mine)
        else:
            assert rows % (mesh[0] * mesh[1])
        shape, offsets = _compute_local_shape_and_global_offset((rows, 3), mesh, [data, tensor], placements)
        assert found.sizes == tuple(shape)
        if 0 not in shape:
            assert found.offsets == tuple(offsets)


def test_replicas_hold_the_same_box() -> None:
    placements = [Replicate(), Shard(1)]
    for copy, at in product(range(2), range(3)):
        found = box((4, 7), (2, 3), (copy, at), [None, MeshCut(1)])
        shape, offsets = _compute_local_shape_and_global_offset((4, 7), (2, 3), [copy, at], placements)
        assert found == Box(tuple(offsets), tuple(shape))


def test_rows_from_here_and_there_are_no_box() -> None:
    """A strided cut that nothing before it explains."""
    assert box((8,), [2], [0], [MeshCut(0, pieces=2)]) is None
