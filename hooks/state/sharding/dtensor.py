"""What a rank holds of a tensor that lies on several: its local shard, where that lies in the whole, and who holds the
same. Asked of the DTensor's own mesh and placements: nothing is sent, and no other rank is waited for.

A tensor that is no DTensor says nothing of other ranks. It is shared where somebody declared it (DistributedDataParallel),
and else this rank's alone, under a name of its own: equal names of several ranks are one tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ....providers.errors import StateError
from ...checkpoint.format.manifest import private_name
from ..tensor_item import StateTensor, Tier
from .boxes import MeshCut, box

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

#: What no DTensor is: asked first, for nearly all are of these.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class RankOf:
    """Which of the job's processes this is."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class DeclaredReplicas:
    """What is declared of a plain tensor that several ranks have."""

    #: All of them, in order.
    group: tuple[int, ...]
    #: Those whose bytes are the tensor's. Fewer than the group: the others have what one of these had a while ago.
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Where a local shard lies."""

    #: In the whole tensor; None where the whole of it is here.
    offsets: tuple[int, ...] | None
    sizes: tuple[int, ...]
    #: The ranks that hold the same bytes, in order; empty where this one does alone.
    holders: tuple[int, ...]
    #: All ranks of its mesh, in order.
    mesh: tuple[int, ...]


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether it is one, without loading what makes them."""
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose bytes lie here: a DTensor's local shard, and any other itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def layout(tensor: DTensor) -> ShardLayout:
    """Where its local shard lies.

    Raises:
        ValueError: the shard is none that a checkpoint can hold; says why.
    """
    spec = tensor._spec
    coordinate = spec.mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("on a mesh that this rank is not part of")
    found = _layout(spec.mesh, tuple(coordinate), tuple(spec.placements), tuple(tensor.shape))
    here = tuple(tensor._local_tensor.shape)
    if here != found.sizes:
        raise ValueError(f"a shard of shape {list(here)} where its placements say {list(found.sizes)}")
    order = getattr(spec, "shard_order", None)  # newer torch: cut in another order than left to right
    if order is not None and any(list(each.mesh_dims) != sorted(each.mesh_dims) for each in order):
        raise ValueError("cut in an order of its own")
    return found


@lru_cache(maxsize=16384)
def _layout(
    mesh: DeviceMesh, coordinate: tuple[int, ...], placements: tuple[Any, ...], shape: tuple[int, ...]
) -> ShardLayout:
    cuts = [cut_of(placement, len(shape)) for placement in placements]
    held = box(shape, mesh.mesh.shape, coordinate, cuts)
    if held is None:
        raise ValueError("a shard whose rows do not lie side by side in the whole tensor")
    same = mesh.mesh[tuple(slice(None) if c is None else at for c, at in zip(cuts, coordinate, strict=True))]
    holders = tuple(sorted(same.flatten().tolist()))
    ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
    whole = held.sizes == shape
    return ShardLayout(
        None if whole else held.offsets, held.sizes, holders if len(holders) > 1 else (), ranks
    )


def cut_of(placement: Any, dims: int) -> MeshCut | None:
    """How one dimension of a mesh cuts a tensor of so many; None where it has copies.

    Raises:
        ValueError: it is cut as no checkpoint can hold it.
    """
    if placement.is_replicate():
        return None
    if placement.is_partial():
        raise ValueError("a sum of which each rank holds a part (Partial)")
    if not isinstance(getattr(placement, "dim", None), int):
        raise ValueError(f"placed by {placement!r}")
    return MeshCut(placement.dim % dims, int(getattr(placement, "split_factor", 1)))


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """Where a tensor of an outline is to be read to."""

    outline: torch.Tensor
    #: What the restored tree has in its place. A DTensor: its local shard is filled.
    tensor: torch.Tensor
    offsets: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, outline: torch.Tensor, tensor: torch.Tensor, bytes_of: torch.Tensor | None = None
    ) -> TargetMemory:
        """The whole of the tensor, or the shard of it that lies here; read into `bytes_of`, if that is not its own."""
        into = tensor if bytes_of is None else bytes_of
        if not is_dtensor(tensor):
            return cls(outline, into)
        offsets = layout(tensor).offsets
        return cls(outline, into, offsets, None if offsets is None else tuple(tensor.shape))


def leaf(
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
    """The leaf of a tensor of the state.

    Args:
        name: what it is called in a checkpoint, if others may hold it too.
        tensor: the live one.
        declared: who has it too, where somebody says so of a plain tensor.
        span: the ranks that its module lies on. One that lies on fewer (a norm that tensor parallel left alone, and
            fully_shard cut for each tensor rank anew) is there several times, and nobody declares those to be the
            same: it bears the number of its first rank.
        read_from: the memory that is read; else the tensor's own.

    Raises:
        StateError: no checkpoint can hold what this rank holds of it.
    """
    memory = local(tensor) if read_from is None else read_from
    if is_dtensor(tensor):
        try:
            lies = layout(tensor)
        except ValueError as error:
            raise StateError(
                f"{name} is {error}, which cannot be saved; shard it by fully_shard or parallelize_module, "
                "or leave it out"
            ) from error
        name = _named(name, lies.mesh, span)
        shape = None if lies.offsets is None else tuple(tensor.shape)
        return StateTensor(name, memory, still, tier, lies.offsets, shape, lies.holders, lies.mesh)
    if ranks.world == 1:
        return StateTensor(name, memory, still, tier)
    if declared is None:
        return StateTensor(private_name(ranks.rank, name), memory, still, tier)
    name = _named(name, declared.group, span)
    return StateTensor(name, memory, still, tier, holders=declared.holders, group=declared.group)


def group(tensor: torch.Tensor, declared: DeclaredReplicas | None) -> tuple[int, ...]:
    """The ranks that a tensor lies on, as far as anybody says; in order.

    Raises:
        ValueError: no checkpoint can hold what this rank holds of it.
    """
    if is_dtensor(tensor):
        return layout(tensor).mesh
    return () if declared is None else declared.group


def _named(name: str, group: tuple[int, ...], span: Collection[int]) -> str:
    return name if not span or len(group) == len(span) else private_name(group[0], name)
