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

from .boxes import Cut, box
from .shards import is_dtensor, layout

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

#: How one dimension of a mesh holds a tensor: the tensor's dimension that it cuts, or this.
_COPIES = -1
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


def placements(parameter: torch.Tensor, tensor: torch.Tensor) -> list[int] | None:
    """How a factor lies that says so itself; None where it lies as its parameter does, or is cut as nothing here makes one
    again."""
    if not is_dtensor(tensor):
        return None
    if tensor.shape == parameter.shape and tensor.placements == getattr(parameter, "placements", None):
        return None
    found = []
    for placement in tensor.placements:
        plain = placement.is_shard() and not getattr(placement, "split_factor", None)
        if not plain and not placement.is_replicate():
            return None
        found.append(int(placement.dim) if plain else _COPIES)  # type: ignore[attr-defined]
    return found


def empty(parameter: DTensor, outline: torch.Tensor, placed: list[int], device: torch.device) -> Any:
    """Memory for such a factor, on the parameter's mesh; None where that has other dimensions than it was cut by."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = parameter.device_mesh
    if set(placed) <= {_COPIES}:
        placed = [_COPIES] * mesh.ndim
    if len(placed) != mesh.ndim or any(dim >= outline.dim() for dim in placed):
        return None
    cuts = [None if dim == _COPIES else Cut(dim) for dim in placed]
    held = box(outline.shape, mesh.mesh.shape, mesh.get_coordinate() or (), cuts)
    assert held is not None  # plain cuts leave rows side by side
    return DTensor.from_local(
        torch.empty(held.sizes, dtype=outline.dtype, device=device),
        mesh,
        [Replicate() if cut is None else Shard(cut.dim) for cut in cuts],
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
        and all(type(key) is str and _numbers(value, _COPIES) for key, value in placed.items())
    )


def _is_shard(key: Any, value: Any) -> bool:
    return (
        type(key) is str
        and isinstance(value, list)
        and len(value) == 2
        and all(_numbers(v, 0) for v in value)
    )


def _numbers(value: Any, least: int) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= least for each in value)
