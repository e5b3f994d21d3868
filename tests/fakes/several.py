"""A small model under each of torch's ways to train on several ranks, and what a test has to know of it.

Even where tensor parallel cuts it (8 columns), uneven where fully_shard does (5 and 3 rows).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

_NUMBER = count()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.first = nn.Linear(5, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.relu(self.first(self.norm(x))))


def mesh_of(*dims: int) -> DeviceMesh:
    """Of names that no mesh had before: torch keeps layouts by equal meshes, with the place that a rank had in them."""
    return init_device_mesh("cpu", dims, mesh_dim_names=tuple(f"dim{next(_NUMBER)}" for _ in dims))


def ddp(model: nn.Module, world: int) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp(model: nn.Module, world: int) -> nn.Module:
    mesh = mesh_of(world)
    fully_shard(model.first, mesh=mesh)  # type: ignore[arg-type]
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def hsdp(model: nn.Module, world: int) -> nn.Module:
    return fully_shard(model, mesh=mesh_of(2, world // 2))  # type: ignore[return-value]


def _cut(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"first": ColwiseParallel(), "last": RowwiseParallel()})


def tp(model: nn.Module, world: int) -> nn.Module:
    return _cut(model, mesh_of(world))


def tp_fsdp(model: nn.Module, world: int) -> nn.Module:
    mesh = mesh_of(world // 2, 2)
    data, tensor = (mesh[name] for name in mesh.mesh_dim_names or ())
    return fully_shard(_cut(model, tensor), mesh=data)  # type: ignore[return-value]


#: Makes a model of one process one of a job of so many.
Way = Callable[[nn.Module, int], nn.Module]
WAYS: dict[str, Way] = {"ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "tp": tp, "tp_fsdp": tp_fsdp}


def share_of(way: str, rank: int) -> int:
    """Which part of the data is this rank's: tensor ranks have the same."""
    return {"tp": 0, "tp_fsdp": rank // 2}.get(way, rank)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, asked of torch: a collective where it is a DTensor."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
