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
from tests.tiers import few_fast

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


Turn = Callable[[nn.Sequential, torch.optim.Optimizer, int], None]


def wide(
    optimizer: Callable[[Any], torch.optim.Optimizer], turn: Turn, *, frozen: bool = False
) -> Callable[[], Job]:
    """A training of forty layers and two heads, of which each turn uses one. `turn` zeroes, freezes and trains before it."""

    def make() -> Job:
        seed()
        body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40))).requires_grad_(not frozen)
        model = nn.Sequential(body, nn.Linear(4, 1), nn.Linear(4, 1))
        opt = optimizer(model.parameters())
        job = Job({"model": model, "optimizer": opt})

        def step(number: int) -> None:
            turn(model, opt, number)
            hidden = torch.randn(3, 4)
            for layer in body:
                hidden = hidden + layer(hidden)
            model[1 if number % 4 else 2](hidden).square().mean().backward()
            job.at("backward", number)
            opt.step()

        job.step = step
        return job

    return make


def zeroing(none: Callable[[int], bool]) -> Turn:
    return lambda model, opt, number: opt.zero_grad(set_to_none=none(number))


def turning(needs: bool) -> Turn:
    """Freeze or train one layer more in each turn."""

    def turn(model: nn.Sequential, opt: torch.optim.Optimizer, number: int) -> None:
        opt.zero_grad()
        if number:
            [*model[0].children()][39 - number].requires_grad_(needs)

    return turn


def left_out(model: nn.Sequential, opt: torch.optim.Optimizer, number: int) -> None:
    """One head has no gradient from turn 4 to the next one that uses it."""
    opt.zero_grad(set_to_none=False)
    if number == 4:
        model[1].zero_grad()


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

#: Changes of few parameters among many, cut in the turn behind them.
WIDE = {
    "none once": wide(adamw, zeroing(lambda number: number == 4)),
    "none at first": wide(adamw, zeroing(lambda number: number < 5)),
    "none from then on": wide(adamw, zeroing(lambda number: number > 3)),
    "one head left out once": wide(adamw, left_out),
    "one head left out once, one tensor after the other": wide(
        lambda params: torch.optim.AdamW(params, lr=0.1, foreach=False), left_out
    ),
    "one layer more frozen in each turn": wide(adamw, turning(False)),
    "one layer more trained in each turn": wide(
        lambda params: torch.optim.SGD(params, lr=0.1), turning(True), frozen=True
    ),
}


def sparse() -> Job:
    """Two tables, of which each turn uses one."""
    seed()
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Embedding(8, 4, sparse=True))
    opt = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    job = Job({"model": model, "optimizer": opt})

    def step(number: int) -> None:
        opt.zero_grad(set_to_none=False)
        model[number % 3 == 0](torch.randint(8, (5,))).square().sum().backward()
        job.at("backward", number)
        opt.step()

    job.step = step
    return job


def by_hand() -> Job:
    """Two bare tensors without an optimizer, of which each turn uses one, and gradients that are kept as `main_grad`."""
    seed()
    one, other = (torch.ones(4, requires_grad=True) for _ in range(2))
    job = Job({"one": one, "other": other})

    def step(number: int) -> None:
        for each in (one, other):
            each.main_grad = torch.zeros(4)  # type: ignore[attr-defined]
            if each.grad is not None:
                each.grad.zero_()
        ((one if number % 3 else other) * torch.randn(4)).square().sum().backward()
        job.at("backward", number)
        with torch.no_grad():
            for each in (one, other):
                if each.grad is not None:
                    each.main_grad += each.grad  # type: ignore[attr-defined]
                each -= 0.1 * each.main_grad  # type: ignore[attr-defined]

    job.step = step
    return job


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", few_fast([3, 1, 5]))
@pytest.mark.parametrize("instant", ["boundary", "backward"])
def test_a_parameter_that_no_batch_uses_is_stepped_as_in_an_uninterrupted_run(
    shape: str, cut: int, instant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    assert ends_equal(SHAPES[shape], cut, instant)
    assert [each for each in caplog.messages if "gradient" in each] == []


@pytest.mark.parametrize("shape", WIDE)
@pytest.mark.parametrize("cut", few_fast([3, 5]))
def test_a_change_of_one_parameter_among_many_comes_back(
    shape: str, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    assert ends_equal(WIDE[shape], cut, "backward")


@pytest.mark.parametrize("make", [sparse, by_hand])
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_gradients_of_other_kinds_end_as_in_an_uninterrupted_run(
    make: Callable[[], Job], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    assert ends_equal(make, cut, "backward")


def ends_equal(make: Callable[[], Job], cut: int, instant: str) -> bool:
    """Whether a run that is cut there and resumed ends as an uninterrupted one."""
    job, store = make(), WatchedStore()
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
    return begun >= cut and bits == trajectory(make, TOTAL)[TOTAL]


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
