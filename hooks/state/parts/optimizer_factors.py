"""What an optimizer keeps of a parameter in another shape than the parameter's: factors of a variance (Adafactor),
preconditioners (Shampoo), numbers of blocks (8-bit Adam).

A moment lies beside its parameter, and is cut as that is for whatever ranks go on. Nobody knows how to cut these. A DTensor
says itself how it lies. A plain tensor was made of one shard and goes with that very shard: to a rank that has the same,
and else to none. Of a square matrix a factor has the matrix's own shape: that it is plain is written down, for by its shape
it would be a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..sharding.boxes import box
from ..sharding.dtensor import cut_of, is_dtensor, layout

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

#: How one dimension of a mesh holds a tensor: the tensor's dimension that it cuts (in a list, where it cuts it in pieces,
#: as fully_shard does what tensor parallel has cut), or this.
_COPIES = -1
Placed = list[int | list[int]]
#: Offsets and sizes of a shard, as JSON has them; None where the whole is here.
Shard = list[list[int]] | None


def shard(parameter: torch.Tensor) -> Shard:
    """Where the part of a parameter that lies here lies in the whole."""
    if not is_dtensor(parameter):
        return None
    lies = layout(parameter)
    return None if lies.offsets is None else [list(lies.offsets), list(lies.sizes)]


def plain(kept: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of a DTensor's that are none, and were made of its shard. (A count of steps is everybody's.)"""
    return [tensor for tensor in kept if tensor.dim() and not is_dtensor(tensor)]


def look_alikes(kept: Iterable[tuple[torch.Tensor, str, torch.Tensor]]) -> list[torch.Tensor]:
    """Of a plain parameter's, those that may be factors and may be moments: of a square one, under a word that nothing
    shows to be a moment's, as what lies under it beside a parameter that is not square would.

    Args:
        kept: of each tensor, its parameter and the word that it is kept under.
    """
    moments: dict[str, bool] = {}
    found = []
    for parameter, word, tensor in kept:
        if tensor.dim() and tensor.shape != parameter.shape:
            moments[word] = False
        elif parameter.dim() in (2, 3) and parameter.shape[-1] == parameter.shape[-2] > 1:
            found += [] if is_dtensor(parameter) else [(word, tensor)]
        elif tensor.dim() > 1:
            moments.setdefault(word, True)
    return [tensor for word, tensor in found if not moments.get(word)]


def placements(parameter: torch.Tensor, tensor: torch.Tensor) -> Placed | None:
    """How a factor lies that says so itself; None where it does not, or lies as its parameter does."""
    if not is_dtensor(tensor):
        return None
    if tensor.shape == parameter.shape and tensor.placements == getattr(parameter, "placements", None):
        return None
    cuts = [cut_of(placement, tensor.dim()) for placement in tensor.placements]
    return [_COPIES if cut is None else [cut.dim] if cut.pieces > 1 else cut.dim for cut in cuts]


def empty(parameter: DTensor, outline: torch.Tensor, placed: Placed, device: torch.device) -> Any:
    """Memory for such a factor, on the parameter's mesh; None where that has other dimensions than it was cut by. What was
    cut in pieces is so again where its parameter is."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = parameter.device_mesh
    if all(each == _COPIES for each in placed):
        placed = [_COPIES] * mesh.ndim
    if len(placed) != mesh.ndim:
        return None
    lies: list[Any] = []
    for each, beside in zip(placed, parameter.placements, strict=True):
        dim = each[0] if isinstance(each, list) else each
        if dim >= outline.dim():
            return None
        alike = isinstance(each, list) and getattr(beside, "dim", None) == dim
        lies.append(Replicate() if dim == _COPIES else beside if alike else Shard(dim))
    cuts = [cut_of(placement, outline.dim()) for placement in lies]
    if (held := box(outline.shape, mesh.mesh.shape, mesh.get_coordinate() or (), cuts)) is None:
        return None
    return DTensor.from_local(
        torch.empty(held.sizes, dtype=outline.dtype, device=device),
        mesh,
        lies,
        run_check=False,
        shape=outline.shape,
        stride=torch.empty(outline.shape, device="meta").stride(),
    )


def well_formed(shards: Any, placed: Any) -> bool:
    """Whether these are a saved tree's words for it."""
    return (
        isinstance(shards, dict)
        and all(_is_shard(key, value) for key, value in shards.items())
        and isinstance(placed, dict)
        and all(type(key) is str and _is_placed(value) for key, value in placed.items())
    )


def _is_shard(key: Any, value: Any) -> bool:
    return (
        type(key) is str
        and isinstance(value, list)
        and len(value) == 2
        and all(_numbers(v, 0) for v in value)
    )


def _is_placed(value: Any) -> bool:
    return isinstance(value, list) and all(
        _numbers(each, 0) and len(each) == 1 if isinstance(each, list) else _numbers([each], _COPIES)
        for each in value
    )


def _numbers(value: Any, least: int) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= least for each in value)
