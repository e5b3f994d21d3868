"""One rank of two: what is in a checkpoint of four, loaded by stock `dcp.load` into FSDP2, is what was saved.

Arguments: rank, a file for the rendezvous, the store's URL, a file with the full tensors that are expected.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from spotguard.hooks.restore.interop.dcp_reader import StorageReader

WORLD = 2


class Small(nn.Module):
    """Uneven rows, a buffer, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 7, bias=False)
        self.three.weight = self.two.weight
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.three(torch.tanh(self.two(torch.tanh(self.one(data)))))
        return out


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main(rank: int, rendezvous: str, url: str, expected: dict[str, torch.Tensor]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    model = Small()
    fully_shard(model.one, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    load(state, storage_reader=StorageReader(url, "run", step=7))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(full(tensor), expected[f"model.{name}"]), name
    for name, param in model.named_parameters():
        held = optimizer.state[param]
        for word in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(full(held[word]), expected[f"optimizer.{name}.{word}"]), (name, word)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)

    # By the names that the checkpoint itself has, along the other dimension.
    alone = {
        "model/one.weight": distribute_tensor(torch.zeros(7, 6), mesh, [Shard(1)]),
        "@00002/rng": torch.zeros(5),
    }
    load(alone, storage_reader=StorageReader(url, "run"))
    assert torch.equal(full(alone["model/one.weight"]), expected["model.one.weight"])
    assert torch.equal(alone["@00002/rng"], torch.arange(5.0))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], load_file(sys.argv[4]))
