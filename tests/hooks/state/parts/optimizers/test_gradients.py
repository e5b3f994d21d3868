"""Gradients of zeros: an optimizer steps a parameter that has one, and passes over a parameter without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.state.parts.optimizers import gradients
from spotguard.testing import preempt
from tests.fakes.training import Job, finished, guarded, seed, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL = 8


class Own(nn.Sequential):
    """Defines its own state, as many wrappers do."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict(state_dict, *args, **kwargs)


class OwnState(torch.optim.AdamW):
    """Is saved through its own state dict."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()


def heads(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *,
    none: Callable[[int], bool] = lambda number: False,
    last: bool = False,
    kind: type[nn.Sequential] = nn.Sequential,
) -> Callable[[], Job]:
    """A training of two heads and a scale, each of which is used in some turns only."""

    def make() -> Job:
        seed()
        model, scale = (
            kind(nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)),
            torch.ones(4, requires_grad=True),
        )
        opt = optimizer([*model.parameters(), scale])
        job = Job({"model": model, "scale": scale, "optimizer": opt})

        def step(number: int) -> None:
            if not last:
                opt.zero_grad(set_to_none=none(number))
            hidden = model[0](torch.randn(3, 4)) * (scale if number % 4 == 1 else 1)
            model[1 if number % 4 else 2](hidden).square().mean().backward()
            job.at("backward", number)
            opt.step()
            if last:
                opt.zero_grad(set_to_none=none(number))

        job.step = step
        return job

    return make


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.1)


SHAPES = {
    "adamw": heads(adamw),
    "zeroed at the end": heads(adamw, last=True),
    "momentum": heads(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)),
    "decay without state": heads(lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1)),
    "state from the beginning": heads(lambda params: torch.optim.Adagrad(params, lr=0.1, weight_decay=0.1)),
    "an optimizer with its own state": heads(OwnState),
    "a module with its own state": heads(adamw, kind=Own),
    "none": heads(adamw, none=lambda number: True),
    "none at the end": heads(adamw, none=lambda number: True, last=True),
    "none once": heads(adamw, none=lambda number: number == 3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [1, 3, 5])
@pytest.mark.parametrize("instant", ["boundary", "backward"])
def test_a_parameter_that_no_batch_uses_is_stepped_as_in_an_uninterrupted_run(
    shape: str, cut: int, instant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    make, store = SHAPES[shape], WatchedStore()
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(cut))
        if instant == "boundary":
            guard.save()
        else:
            job.at = lambda *_: preempt(guard, seconds=60)
            with pytest.raises(Preempted):
                step_on(guard, job, cut)
    begun, bits = finished(store, make, TOTAL)
    assert bits == trajectory(make, TOTAL)[TOTAL]
    assert begun >= cut
    assert [each for each in caplog.messages if "gradient" in each] == []


def test_values_of_gradients_are_not_saved(folder: Path) -> None:
    """And a restore in the same process clears what the turn it leaves has gathered."""
    job = SHAPES["adamw"]()
    optimizer = job.values["optimizer"]
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        guard.save()
        held = [p.grad for p in job.values["model"].parameters()]
        job.step(2)
        guard.restore()
        now = [p.grad for p in job.values["model"].parameters()]
        assert all(each is before for each, before in zip(now, held, strict=True))
        assert not any(each.any() for each in now)
        assert optimizer.state_dict()["state"][0]["step"] == 2


def test_a_sparse_gradient_comes_back_sparse() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    saved = gradients.presence(layer.parameters())
    fresh = nn.Embedding(4, 2, sparse=True)
    gradients.put_back([*fresh.parameters()], saved)
    assert fresh.weight.grad is not None
    assert fresh.weight.grad.is_sparse
    assert fresh.weight.grad._nnz() == 0
    torch.optim.SparseAdam(fresh.parameters()).step()
