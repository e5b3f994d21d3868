"""The shards of fully_shard are read where they lie at any moment of a step, whatever it is told to do with the weights that
it gathers, and whatever steps them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.state.state import State
from tests.fakes.ranks import rank_of
from tests.fakes.several import mesh_of

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in bfloat16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    "kept gathered": {"reshard_after_forward": False},
    "halfway": {"reshard_after_forward": 2},
    "on the host": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "by columns": {"shard_placement_fn": lambda parameter: Shard(parameter.dim() - 1)},
}


class Tied(nn.Module):
    """One weight in two places, a layer of its own inside, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.inner = nn.Linear(8, 8)
        self.fixed = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 12, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.relu(self.fixed(self.inner(self.words(x)))))


def aside(state: State, seen: list[Any]) -> Callable[..., None]:
    """Looks on a thread of its own, as a save does."""

    def look() -> None:
        try:
            seen.append(
                (
                    state.inconsistency(),
                    [
                        (state_tensor.name, id(state_tensor.tensor))
                        for state_tensor in state.collect().state_tensors
                    ],
                )
            )
        except BaseException as error:  # noqa: BLE001 - the test shows what it was
            seen.append(error)

    def run(*_: Any) -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(100)

    return run


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_at_any_moment_of_a_step(options: dict[str, Any]) -> None:
    with rank_of(1, 4):
        model, mesh = Tied(), mesh_of(4)
        for module in (model.inner, model):
            fully_shard(module, mesh=mesh, **options)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        state = State({"model": model, "optimizer": optimizer}, lambda frame: None, rank=1, world=4)
        words = torch.arange(6)

        def step() -> None:
            model(words).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            state.at_boundary()

        step()
        seen: list[Any] = []
        look = aside(state, seen)
        look()
        model.last.register_forward_pre_hook(look)
        model.inner.register_full_backward_hook(look)
        model(words).float().square().mean().backward()
        with torch.no_grad():
            model(words)
        look()
        tensors = [(name, address) for name, address in seen[0][1] if "rng" not in name]
        for broken, state_tensors in seen:
            assert broken == ""
            assert [each for each in state_tensors if "rng" not in each[0]] == tensors
        assert len(seen) == 5
        step()
        found = {state_tensor.name: state_tensor for state_tensor in state.collect().state_tensors}
        assert "model/last.weight" not in found  # tied: under its first name alone
        assert found["model/fixed.weight"].tier is Tier.FROZEN
        assert found["model/words.weight"].shape == (12, 8)
        assert state.boundary_only == ""


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adagrad,
        torch.optim.ASGD,
        torch.optim.NAdam,
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
        lambda parameters: torch.optim.RMSprop(parameters, centered=True),
        lambda parameters: torch.optim.Adam(parameters, amsgrad=True, lr=torch.tensor(0.1)),
    ],
)
def test_optimizer_state_beside_a_shard_has_its_layout(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Of the shape of the parameter: its shard. A number: everybody's. (A learning rate of the user's is each rank's.)"""
    with rank_of(1, 2):
        model: Any = fully_shard(nn.Linear(6, 4, bias=False), mesh=mesh_of(2))
        optimizer = make(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = State({"model": model, "optimizer": optimizer}, lambda frame: None, rank=1, world=2)
        kept = [
            state_tensor
            for state_tensor in state.collect().state_tensors
            if state_tensor.name.startswith("optimizer/")
        ]
        assert kept
        for state_tensor in kept:
            if state_tensor.tensor.dim():
                assert (state_tensor.offsets, state_tensor.shape, state_tensor.holders) == (
                    (2, 0),
                    (4, 6),
                    (),
                )
            else:
                assert (state_tensor.offsets, state_tensor.holders) == (None, (0, 1))
