"""An optimizer that multiplies its betas' powers in C++, as DeepSpeed's does on the CPU, goes on bit for bit.

DeepSpeed's own code is compiled on the machine, which takes two minutes: `tests/integrations/test_pairs.py` runs it in the soak.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotguard.hooks.state.parts.optimizers.running_products import running_products
from tests.fakes.training import Job, different, finished, guarded, seed, step_on, trajectory

pytestmark = pytest.mark.torch


class Compiled:
    """The products of `IncrementStep` in DeepSpeed's `csrc/includes/cpu_adam.h`, in float32."""

    def __init__(self) -> None:
        self.betas, self.products, self.step = (np.float32(0), np.float32(0)), [np.float32(0)] * 2, 0

    def adam_update(self, _: int, step: int, lr: float, *rest: Any) -> None:
        beta1, beta2, eps, _decay, _corrected, p, g, m, v = rest
        betas = (np.float32(beta1), np.float32(beta2))
        if betas != self.betas or step not in (self.step, self.step + 1):
            self.products = [beta ** np.float32(step) for beta in betas]
        elif step == self.step + 1:
            self.products = [a * b for a, b in zip(self.products, betas, strict=True)]
        self.betas, self.step = betas, step
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        corrected = (v / float(np.float32(1) - self.products[1])).sqrt_().add_(eps)
        p.addcdiv_(m, corrected, value=-lr / float(np.float32(1) - self.products[0]))


class DeepSpeedCPUAdam(torch.optim.Optimizer):
    """DeepSpeed's class as a checkpoint sees it: the step counts are plain numbers, and the products are not here."""

    def __init__(self, params: Iterable[Any], betas: tuple[float, float] = (0.8, 0.999)) -> None:
        super().__init__(
            params, {"lr": 1e-2, "betas": betas, "eps": 1e-8, "weight_decay": 0, "bias_correction": True}
        )
        self.opt_id, self.ds_opt_adam = 0, Compiled()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                state["step"] += 1
                numbers = (group["lr"], *group["betas"], group["eps"], 0.0, True)
                self.ds_opt_adam.adam_update(
                    0, state["step"], *numbers, p.data, p.grad, state["exp_avg"], state["exp_avg_sq"]
                )


DeepSpeedCPUAdam.__module__ = "deepspeed.ops.adam.cpu_adam"


def job(until: int) -> Job:
    """A training whose schedule changes the betas at each of the first `until` steps."""
    seed()
    model = nn.Linear(8, 8)
    optimizer = DeepSpeedCPUAdam(model.parameters())
    (group,) = optimizer.param_groups

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if number < until:
            group["betas"] = (0.8 + number / 1000, 0.999)

    return Job({"model": model, "optimizer": optimizer}, step)


@pytest.mark.parametrize(
    ("until", "stop"),
    [
        pytest.param(0, 1, id="first-step"),
        pytest.param(0, 60, id="constant-betas"),
        pytest.param(40, 30, id="betas-that-change"),
        pytest.param(40, 40, id="last-change"),
        pytest.param(40, 61, id="betas-that-have-changed"),
    ],
)
def test_training_goes_on_with_the_products_it_had(until: int, stop: int, tmp_path: Path) -> None:
    def make() -> Job:
        return job(until)

    total = 80
    expected = trajectory(make, total)
    trained = make()
    with guarded(tmp_path, trained.values) as guard:
        guard.restore()
        step_on(guard, trained, *range(stop))
        guard.save()
    assert different(finished(tmp_path, make, total)[1], expected[total]) == []


def test_products_that_are_too_small_to_matter_are_not_repeated() -> None:
    optimizer = DeepSpeedCPUAdam([weight := nn.Parameter(torch.ones(3))])
    weight.grad = torch.ones(3)
    optimizer.step()
    optimizer.state[weight]["step"] = 10**9
    products = running_products(optimizer)
    assert products is not None
    products.repeat(1)
    assert optimizer.ds_opt_adam.step == 1


def test_other_optimizers_keep_none() -> None:
    assert running_products(torch.optim.Adam([torch.zeros(1)])) is None
