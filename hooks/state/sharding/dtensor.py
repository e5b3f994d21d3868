"""The part of a distributed tensor that a rank holds: the local shard, its place, and the ranks with the same bytes.

The answer comes from the DTensor's own mesh and placements, with no message and no wait for another rank.

A tensor that is not a DTensor tells nothing about other ranks. If a wrapper declares it (DistributedDataParallel),
several ranks share it. Otherwise it belongs to this rank alone, under a private name, because equal names on several
ranks mean one tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from ....providers.errors import StateError
from ...checkpoint.format.manifest import private_name
from ...checkpoint.tier import Tier
from ..state_tensor import StateTensor
from .boxes import MeshCut, box

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

#: Types that are never DTensors. They are checked first, because nearly all tensors have one of them.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class RankOf:
    """This process's rank, and the number of ranks in the job."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class DeclaredReplicas:
    """The declaration for a plain tensor that several ranks have."""

    #: All ranks that have the tensor, in order.
    group: tuple[int, ...]
    #: The ranks whose bytes are the tensor's. If they are fewer than the group, the other ranks hold an older copy of
    #: the bytes.
    holders: tuple[int, ...]


class KnownTensor(NamedTuple):
    """A live tensor and its name in the checkpoint, the ranks declared to have it, and the ranks of its module."""

    name: str
    tensor: torch.Tensor
    declared: DeclaredReplicas | None = None
    span: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The place of a local shard in the global tensor."""

    #: The offsets in the global tensor; None if the whole tensor is here.
    offsets: tuple[int, ...] | None
    sizes: tuple[int, ...]
    #: The ranks that hold the same bytes, in order; empty if this rank alone does.
    holders: tuple[int, ...]
    #: All ranks of the tensor's mesh, in order.
    mesh: tuple[int, ...]


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Return whether the value is a DTensor, without importing DTensor's module."""
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose bytes are in this process: a DTensor's local shard, or a plain tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def layout(tensor: DTensor) -> ShardLayout:
    """Return the place of a DTensor's local shard.

    Raises:
        ValueError: a checkpoint cannot hold such a shard; the message gives the reason.
    """
    spec = tensor._spec
    coordinate = spec.mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("on a mesh that this rank is not part of")
    expected = _layout(spec.mesh, tuple(coordinate), tuple(spec.placements), tuple(tensor.shape))
    actual = tuple(tensor._local_tensor.shape)
    if actual != expected.sizes:
        raise ValueError(f"a shard of shape {list(actual)} where its placements give {list(expected.sizes)}")
    order = getattr(spec, "shard_order", None)  # newer torch: may cut in another order than left to right
    if order is not None and any(list(each.mesh_dims) != sorted(each.mesh_dims) for each in order):
        raise ValueError("sharded in an order of its own")
    return expected


@lru_cache(maxsize=16384)
def _layout(
    mesh: DeviceMesh, coordinate: tuple[int, ...], placements: tuple[Any, ...], shape: tuple[int, ...]
) -> ShardLayout:
    cuts = [cut_of(placement, len(shape)) for placement in placements]
    part = box(shape, mesh.mesh.shape, coordinate, cuts)
    if part is None:
        raise ValueError("a shard whose rows are not contiguous in the full tensor")
    replicas = mesh.mesh[
        tuple(slice(None) if c is None else at for c, at in zip(cuts, coordinate, strict=True))
    ]
    holders = tuple(sorted(replicas.flatten().tolist()))
    ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
    is_whole = part.sizes == shape
    return ShardLayout(
        None if is_whole else part.offsets, part.sizes, holders if len(holders) > 1 else (), ranks
    )


def cut_of(placement: Any, dims: int) -> MeshCut | None:
    """Return how one mesh dimension cuts a tensor; None for a dimension of replicas.

    Args:
        placement: the placement of that mesh dimension.
        dims: the number of the tensor's dimensions.

    Raises:
        ValueError: a checkpoint cannot hold a tensor with this placement.
    """
    if placement.is_replicate():
        return None
    if placement.is_partial():
        raise ValueError("a partial sum, of which each rank holds a part (Partial)")
    if not isinstance(getattr(placement, "dim", None), int):
        raise ValueError(f"placed by {placement!r}")
    return MeshCut(placement.dim % dims, int(getattr(placement, "split_factor", 1)))


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """The memory that a tensor of an outline is read into."""

    outline: torch.Tensor
    #: The tensor in the restored tree. For a DTensor the restore fills its local shard.
    tensor: torch.Tensor
    offsets: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    #: The live tensor that the memory is or stands for, and its path in the script; "" for memory that the restore has made.
    live: torch.Tensor | None = None
    path: str = ""

    @classmethod
    def of(
        cls, outline: torch.Tensor, tensor: torch.Tensor, bytes_of: torch.Tensor | None = None, path: str = ""
    ) -> TargetMemory:
        """Return the target for a whole tensor, or for the shard of it that is here.

        Args:
            outline: the tensor of the outline.
            tensor: the live tensor.
            bytes_of: the memory to read into, if it is not the tensor's own.
            path: the tensor's path in the script, if other tensors there may share its memory.
        """
        into = tensor if bytes_of is None else bytes_of
        offsets = layout(tensor).offsets if is_dtensor(tensor) else None
        return cls(outline, into, offsets, None if offsets is None else tuple(tensor.shape), tensor, path)


def state_tensor(
    name: str,
    tensor: torch.Tensor,
    ranks: RankOf,
    declared: DeclaredReplicas | None = None,
    *,
    span: Collection[int] = (),
    read_from: torch.Tensor | None = None,
    still: bool = False,
    tier: Tier = Tier.WEIGHTS,
) -> StateTensor:
    """Return the state tensor for a live tensor.

    Args:
        name: its name in a checkpoint, if other ranks may hold it too.
        tensor: the live tensor.
        ranks: this process's rank, and the number of ranks.
        declared: the ranks that have the tensor too, if a wrapper declares them for a plain tensor.
        span: the ranks of the tensor's module. A tensor on fewer ranks exists several times, and nothing declares
            these copies equal. An example is a norm that tensor parallel left alone, and that fully_shard cut once
            per tensor rank. Such a tensor's name carries the number of its first rank.
        read_from: the memory that a save reads; by default the tensor's own.
        still: whether the bytes cannot change while the gate is shut.
        tier: the tensor's tier.

    Raises:
        StateError: a checkpoint cannot hold this rank's part of the tensor.
    """
    memory = local(tensor) if read_from is None else read_from
    if is_dtensor(tensor):
        try:
            place = layout(tensor)
        except ValueError as error:
            raise StateError(
                f"{name} is {error}, which cannot be saved; shard it by fully_shard or parallelize_module, "
                "or leave it out"
            ) from error
        name = _named(name, place.mesh, span)
        shape = None if place.offsets is None else tuple(tensor.shape)
        return StateTensor(name, memory, still, tier, place.offsets, shape, place.holders, place.mesh)
    if ranks.world == 1:
        return StateTensor(name, memory, still, tier)
    if declared is None:
        return StateTensor(private_name(ranks.rank, name), memory, still, tier)
    name = _named(name, declared.group, span)
    return StateTensor(name, memory, still, tier, holders=declared.holders, group=declared.group)


def group(tensor: torch.Tensor, declared: DeclaredReplicas | None) -> tuple[int, ...]:
    """Return the ranks that hold a part of the tensor, in order, as far as its mesh or a wrapper declares them.

    Raises:
        ValueError: a checkpoint cannot hold this rank's part of the tensor.
    """
    if is_dtensor(tensor):
        return layout(tensor).mesh
    return () if declared is None else declared.group


def _named(name: str, group: tuple[int, ...], span: Collection[int]) -> str:
    return name if not span or len(group) == len(span) else private_name(group[0], name)
