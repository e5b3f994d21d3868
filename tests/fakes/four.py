"""A small model that AdamW has trained for two steps, and its checkpoint as four ranks of FSDP2 would have saved it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spotguard.hooks.checkpoint.format.values.encoder import encode
from spotguard.providers.stores.factory import open_store
from tests.fakes.cut import Cut, rows
from tests.hooks.restore.interop.programs.load import Small


def trained() -> tuple[Small, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Small()
    model.seen.fill_(2.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, betas=(0.8, 0.99))
    for _ in range(2):
        model(torch.rand(5, 6)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def saved_by_four(url: str, model: nn.Module, optimizer: torch.optim.Optimizer, **others: Any) -> Cut:
    """Names and trees are those that a restore reads."""
    names = {id(param): f"model/{name}" for name, param in model.named_parameters()}
    tensors = {f"model/{key}": value for key, value in model.state_dict().items() if key != "three.weight"}
    groups = [
        {**group, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups
    ]
    state = {names[id(p)]: values for p, values in optimizer.state.items()}
    for name, values in state.items():
        tensors |= {f"optimizer/state/{name}/{word}": tensor for word, tensor in values.items()}
    weights = {key: tensors.get(f"model/{key}", tensors["model/two.weight"]) for key in model.state_dict()}
    moments = {"class": "AdamW", "param_groups": groups, "state": state, "on_host": []}
    by_id = {id(tensor): name for name, tensor in tensors.items()}

    def take(tensor: torch.Tensor) -> str:
        if id(tensor) not in by_id:
            by_id[id(tensor)] = f"@00000/extra#{len(by_id)}"
            tensors[by_id[id(tensor)]] = tensor
        return by_id[id(tensor)]

    trees = {
        name: encode(tree, take) for name, tree in {"model": weights, "optimizer": moments, **others}.items()
    }
    cut = Cut(tensors, rows, world=4, state=trees, private={"rng": torch.arange(5.0)})
    cut.write(open_store(url))
    return cut
