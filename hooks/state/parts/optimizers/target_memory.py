"""Memory that a restore reads an optimizer's state into: beside each parameter, in the layout that the state had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...inventory.inner_tensors import is_outline
from ...inventory.looks import memory_like
from ...inventory.walk import tensors_in
from ...sharding.boxes import box
from ...sharding.dtensor import TargetMemory, cut_of, is_dtensor, local
from ..values import room
from .merge import cannot_be_cut
from .optimizer_tree import COPIES, Placed, by_field, shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def target_memory(
    part: str,
    tree: dict[str, Any],
    params: Mapping[str, torch.Tensor],
    first: torch.Tensor | None,
    name_of: Callable[[torch.Tensor], str],
) -> Iterator[TargetMemory]:
    """Yield memory for each state tensor. State of a shard is a shard.

    Args:
        part: the optimizer's registered name.
        tree: the saved tree, merged and well formed.
        params: the parameters that the optimizer knows here, by name.
        first: the first parameter of its groups, on whose device state of no parameter is; None if there is none.
        name_of: returns the name of a state tensor in the checkpoint.

    Raises:
        StateError: state of one shard is wanted, and no rank that saved had this shard. Or the device has no room.
    """
    on_host, shards, placed = set(tree["on_host"]), tree.get("shards", {}), tree.get("placed", {})
    plain = set(tree.get("plain", []))
    for key, values in tree["state"].items():
        param = params[key]
        here = shard(param)
        for _, value in by_field(values):
            for outline in tensors_in(value):
                name = name_of(outline)
                host = name in on_host
                # The state was made from exactly this shard, or from the whole parameter.
                same = shards.get(key) == here
                is_whole = here is None or not outline.dim() or outline.shape == param.shape
                made = None
                with room(name):
                    if is_dtensor(param) and (saved_layout := placed.get(name)) is not None:
                        made = _factor(param, outline, saved_layout, _device(param, host))
                    elif is_dtensor(param) and name in plain:
                        made = memory_like(outline, _device(param, host)) if same else None
                    elif is_whole or same:
                        if is_dtensor(param) and param.shape == outline.shape and not is_outline(value):
                            made = torch.empty_like(param, dtype=outline.dtype, requires_grad=False)
                        else:
                            made = memory_like(outline, _device(param, host))
                if made is None:
                    raise cannot_be_cut(part, key)
                yield TargetMemory.of(outline, made)
    for _, values in tree.get("other", ()):
        for outline in tensors_in(values):
            yield TargetMemory.of(outline, memory_like(outline, _device(first, name_of(outline) in on_host)))


def _factor(parameter: DTensor, outline: torch.Tensor, placed: Placed, device: torch.device) -> Any:
    """Return memory for a factor that declares its layout, on the parameter's mesh; None if the mesh does not fit that layout.

    A factor that was cut in pieces is cut so again if its parameter is.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = parameter.device_mesh
    if all(saved_dim == COPIES for saved_dim in placed):
        placed = [COPIES] * mesh.ndim
    if len(placed) != mesh.ndim:
        return None
    layouts: list[Any] = []
    for saved_dim, beside in zip(placed, parameter.placements, strict=True):
        dim = saved_dim[0] if isinstance(saved_dim, list) else saved_dim
        if dim >= outline.dim():
            return None
        alike = isinstance(saved_dim, list) and getattr(beside, "dim", None) == dim
        layouts.append(Replicate() if dim == COPIES else beside if alike else Shard(dim))
    cuts = [cut_of(placement, outline.dim()) for placement in layouts]
    if (part := box(outline.shape, mesh.mesh.shape, mesh.get_coordinate() or (), cuts)) is None:
        return None
    return DTensor.from_local(
        torch.empty(part.sizes, dtype=outline.dtype, device=device),
        mesh,
        layouts,
        run_check=False,
        shape=outline.shape,
        stride=torch.empty(outline.shape, device="meta").stride(),
    )


def _device(param: torch.Tensor | None, on_host: bool) -> torch.device:
    return torch.device("cpu") if param is None or on_host else local(param).device
