"""Each optimizer of the package pytorch_optimizer: cut, restored into fresh objects, trained on, and compared with a whole run.

Prints a JSON object: for each name "exact", or what happened instead.

Usage: optimizers.py FOLDER [NAME …]
"""

from __future__ import annotations

import json
import logging
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_optimizer
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

import spotguard

STEPS, CUTS = 8, (1, 3, 5)
torch.set_num_threads(1)
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


class Model(nn.Module):
    """Matrices, a square one among them, vectors and a convolution, or matrices alone."""

    def __init__(self, matrices: bool) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(8, 8, bias=False) if matrices else nn.Conv1d(2, 4, 3)
        self.square = nn.Linear(8, 8, bias=not matrices)
        self.norm = nn.LayerNorm(8, elementwise_affine=not matrices)
        self.head = nn.Linear(8, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1) if isinstance(self.first, nn.Linear) else x).flatten(1)
        value: torch.Tensor = self.head(self.norm(self.square(x).tanh()))
        return value


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    return [
        {"params": matrices, "use_muon": True},
        {"params": [p for p in model.parameters() if p.dim() != 2], "use_muon": False},
    ]


def _of_parameters(cls: Any, model: nn.Module) -> Any:
    return cls(model.parameters())


#: How an optimizer is made, if its parameters alone are not enough.
MADE: dict[str, Callable[[Any, nn.Module], Any]] = {
    "adalomo": lambda cls, model: cls(model),
    "adammini": lambda cls, model: cls(model, num_embeds=8, num_heads=2),
    "bsam": lambda cls, model: cls(model.parameters(), num_data=64),
    "lomo": lambda cls, model: cls(model),
    "magma": lambda cls, model: cls(torch.optim.AdamW(model.parameters(), lr=1e-2)),
    "ranger21": lambda cls, model: cls(model.parameters(), num_iterations=STEPS),
    **dict.fromkeys(
        ("adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon"),
        lambda cls, model: cls(_groups(model)),
    ),
}
#: Optimizers of matrices alone.
MATRICES = ("adalomo", "demo", "spectralsphere")
#: Optimizers whose step wants a closure.
CLOSURE = ("alig", "bsam", "lbfgs")
#: Optimizers that differentiate the gradient.
CREATE_GRAPH = ("adahessian", "sophiah")


def job(name: str) -> tuple[dict[str, Any], Callable[[int], None]]:
    """Fresh objects, and one step of their training."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = Model(name in MATRICES)
    cls: Any = pytorch_optimizer.load_optimizer(name)
    made = MADE.get(name, _of_parameters)
    optimizer = made(cls, model)
    if hasattr(optimizer, "train"):
        optimizer.train()

    def step(number: int) -> None:
        x = torch.randn(4, 2, 4)

        def loss_of() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss: torch.Tensor = (model(x) - 1).square().mean()
                loss.backward(create_graph=name in CREATE_GRAPH)
            return loss

        if hasattr(optimizer, "fused_backward"):
            optimizer.fused_backward((model(x) - 1).square().mean(), lr=1e-2)
        elif name in CLOSURE:
            loss_of()  # some read the gradients before they call the closure
            optimizer.step(loss_of)
        else:
            loss_of()
            optimizer.step()

    return {"model": model, "optimizer": optimizer}, step


def bits(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"rng": torch.get_rng_state().numpy().tobytes()}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{path}.{key}", each)
        elif isinstance(value, (list, tuple)):
            for index, each in enumerate(value):
                walk(f"{path}.{index}", each)
        elif isinstance(value, torch.Tensor):
            flat = value.detach().contiguous().reshape(-1)
            found[path] = (str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes())
        else:
            found[path] = repr(value)

    for name, value in values.items():
        walk(name, value.state_dict())
    return found


def tried(name: str, folder: Path) -> str:
    try:
        values, step = job(name)
        for number in range(STEPS):
            step(number)
    except Exception as error:  # noqa: BLE001 - whatever the package raises
        return f"does not train here: {type(error).__name__}: {error}"
    whole = bits(values)
    for cut in CUTS:
        store = (folder / f"{name}-{cut}").as_uri()
        try:
            values, step = job(name)
            guard = spotguard.register(store, run_id="run", **values)
            try:
                guard.restore()
                for number in range(cut):
                    step(number)
                    guard.step()
                guard.save()
            finally:
                guard.close()
            values, step = job(name)
            guard = spotguard.register(store, run_id="run", **values)
            try:
                done = guard.restore()
                for number in range(done, STEPS):
                    step(number)
                    guard.step()
            finally:
                guard.close()
        except Exception as error:  # noqa: BLE001 - a refusal, or an error of the package on restored state
            return f"cut at {cut}: {type(error).__name__}: {error}"
        now = bits(values)
        if differing := [path for path in {**whole, **now} if whole.get(path) != now.get(path)]:
            weights = sum(path.startswith("model.") for path in differing)
            return f"cut at {cut}: {len(differing)} differ, {weights} of them weights, such as {differing[0]}"
    return "exact"


# One optimizer asks for the ranks at its first step.
torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
folder, *names = sys.argv[1:]
table = {name: tried(name, Path(folder)) for name in names or pytorch_optimizer.get_supported_optimizers()}
print(json.dumps(table))
