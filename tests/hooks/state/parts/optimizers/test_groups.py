"""Parameter groups that a script adds while it trains, options that it changes between two lives, and layers that are new."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from spotguard.hooks.state.parts.registry import build
from spotguard.hooks.state.sharding.dtensor import RankOf
from spotguard.providers.errors import StateError, UsageError
from tests.fakes.training import Job, bits, different, finished, guarded, seed, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL = 8

#: Adds the group of a layer at its step.
Add = Callable[[Optimizer, nn.Module, int], None]


def at_once(optimizer: Optimizer, layer: nn.Module, number: int) -> None:
    if number in (2, 4):
        layer.requires_grad_(True)
        optimizer.add_param_group({"params": [*layer.parameters()], "lr": 0.01 * number})


def if_not_there(optimizer: Optimizer, layer: nn.Module, number: int) -> None:
    """Test what the restore's warning says."""
    if number >= 2 and len(optimizer.param_groups) < 2:
        optimizer.add_param_group({"params": [*layer.parameters()], "lr": 0.05})


def with_names(optimizer: Optimizer, layer: nn.Module, number: int) -> None:
    if number == 2:
        optimizer.add_param_group({"params": [*layer.named_parameters()], "lr": 0.01})


def with_a_tensor(optimizer: Optimizer, layer: nn.Module, number: int) -> None:
    if number == 3:
        optimizer.add_param_group({"params": [*layer.parameters()], "lr": torch.tensor(0.03)})


def unfreezing(add: Add, optimizer: Callable[[Any], Optimizer], *, named: bool = False) -> Callable[[], Job]:
    """A training that begins with the last layer, and adds the others from the top down."""

    def make() -> Job:
        seed()
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
        last = model[4]
        opt = optimizer([*last.named_parameters()] if named else [*last.parameters()])
        if add is at_once:
            model[0].requires_grad_(False)
            model[2].requires_grad_(False)
        job = Job({"model": model, "optimizer": opt})

        def step(number: int) -> None:
            add(opt, model[0 if number > 3 else 2], number)
            opt.zero_grad()
            model(torch.rand(4, 6)).square().sum().backward()
            opt.step()

        job.step = step
        return job

    return make


def adamw(params: Any) -> Optimizer:
    return torch.optim.AdamW(params, lr=0.1)


SHAPES: dict[str, Callable[[], Job]] = {
    "two groups, a schedule by step": unfreezing(at_once, adamw),
    "sgd without state": unfreezing(at_once, lambda params: torch.optim.SGD(params, lr=0.1)),
    "a test of the groups": unfreezing(if_not_there, adamw),
    "named parameters": unfreezing(with_names, adamw, named=True),
    "a tensor": unfreezing(with_a_tensor, adamw),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_groups_that_were_added_later_come_back(
    shape: str, cut: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With options, moments and gradients; one line names them and what the script tests."""
    make = SHAPES[shape]
    expected = trajectory(make, TOTAL)
    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(cut))
        guard.save()
    groups = len(job.values["optimizer"].param_groups)
    caplog.clear()
    assert finished(folder, make, TOTAL) == (cut, expected[TOTAL])
    lines = [each for each in caplog.messages if "parameter groups" in each]
    assert len(lines) == (groups > 1)
    assert all(f"if len(optimizer.param_groups) < {groups}" in each for each in lines)


def flags(number: int, model: nn.Sequential) -> None:
    """Freeze one layer at a step, and let another one train again."""
    if number == 2:
        model[2].requires_grad_(False)
        model[0].requires_grad_(True)


def toggled(number: int, model: nn.Sequential) -> None:
    model[2].requires_grad_(number % 3 > 0)


@pytest.mark.parametrize("change", [flags, toggled])
@pytest.mark.parametrize("cut", [1, 3, 4])
def test_parameters_that_were_frozen_or_trained_later_come_back_so(
    change: Callable[[int, nn.Sequential], None], cut: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the groups that the optimizer had from the beginning. A line says so, which is no warning."""

    def make() -> Job:
        seed()
        model = nn.Sequential(
            nn.Linear(6, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        job = Job({"model": model, "optimizer": optimizer})

        def step(number: int) -> None:
            change(number, model)
            optimizer.zero_grad()
            model(torch.rand(4, 6)).square().sum().backward()
            optimizer.step()

        job.step = step
        return job

    expected = trajectory(make, TOTAL)
    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(cut))
        guard.save()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert finished(folder, make, TOTAL) == (cut, expected[TOTAL])
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []
    said = [each for each in caplog.messages if "as the run had it" in each]
    turned = cut > 2 if change is flags else cut != 3
    assert len(said) == turned, said


def test_another_runs_frozen_layers_stay_as_the_script_has_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    values = make()
    with guarded(folder, values) as guard:
        guard.restore()
        values["model"].requires_grad_(False)
        guard.step()
        guard.save()
    for run_id, needs in (("other", True), ("run", False)):
        fresh = make()
        with guarded(folder, fresh, run_id) as guard:
            assert guard.restore(run_id="run") == 1
        assert [p.requires_grad for p in fresh["model"].parameters()] == [needs, needs], run_id


def test_a_layer_that_is_frozen_among_many_is_found_at_the_next_boundary() -> None:
    """Boundaries look at few parameters, from all over the model."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part = next(each for each in build({"m": model, "o": optimizer}, RankOf()).parts if each.name == "o")
    for number in (0, 17, 34):
        model[number : number + 6].requires_grad_(False)
        part.at_boundary()
        assert len(part.tree()["turned"]) == 12
        model.requires_grad_(True)
        part.at_boundary()
        assert "turned" not in part.tree()


def test_boundaries_look_at_all_parameters_in_turn() -> None:
    """A few at each, so that a change of one among many is found some boundaries later."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part = next(each for each in build({"m": model, "o": optimizer}, RankOf()).parts if each.name == "o")
    part.at_boundary()
    for number in (0, 5, 9):
        model[number].requires_grad_(False)
        for _ in range(4):
            part.at_boundary()
        assert part.tree()["turned"] == {f"m/{number}.weight": False, f"m/{number}.bias": False}
        model[number].requires_grad_(True)
        for _ in range(4):
            part.at_boundary()
        assert "turned" not in part.tree()


def test_a_layer_that_the_new_script_freezes_stays_frozen() -> None:
    make, store = SHAPES["a test of the groups"], WatchedStore()
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    fresh = make()
    fresh.values["model"][4].requires_grad_(False)
    with guarded(store, fresh.values) as guard:
        guard.restore()
    assert not fresh.values["model"][4].weight.requires_grad


def test_a_group_of_a_layer_that_is_not_registered_is_refused() -> None:
    make, store = SHAPES["a test of the groups"], WatchedStore()
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    fresh = make()
    values = {"model": nn.ModuleDict({"4": fresh.values["model"][4]}), "optimizer": fresh.values["optimizer"]}
    before = bits(values)
    with guarded(store, values) as guard, pytest.raises(StateError, match="SG602"):
        guard.restore()
    assert different(bits(values), before) == []


def test_an_optimizer_that_refuses_the_group_is_named() -> None:
    class Fixed(torch.optim.SGD):
        closed = False

        def add_param_group(self, group: dict[str, Any]) -> None:
            if self.closed:
                raise RuntimeError("no more groups")
            super().add_param_group(group)

    make, store = unfreezing(if_not_there, lambda params: Fixed(params, lr=0.1)), WatchedStore()
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    fresh = make()
    fresh.values["optimizer"].closed = True
    with (
        guarded(store, fresh.values) as guard,
        pytest.raises(StateError, match=r"optimizer: Fixed\.add_param_group refuses .*no more groups"),
    ):
        guard.restore()


# --- options ---


def saved(make: Callable[[], Job], steps: int = 3) -> WatchedStore:
    store, job = WatchedStore(), make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(steps))
        guard.save()
    return store


def lines_of(store: WatchedStore, make: Callable[[], Job], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a restore logs about the options, of a job that then trains and saves one more step."""
    caplog.clear()
    job = make()
    with guarded(store, job.values) as guard:
        done = guard.restore()
        step_on(guard, job, done)
        guard.save()
    return [each for each in caplog.messages if "other options" in each]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lr": 0.5}, 'optimizer.param_groups[0]["lr"] = 0.5 (registered with 0.01, restored 0.005)'),
        (
            {"lr": torch.tensor(0.5)},
            'optimizer.param_groups[0]["lr"] = 0.5 (registered with 0.01, restored 0.005)',
        ),
        (
            {"betas": (0.8, 0.9)},
            'optimizer.param_groups[0]["betas"] = (0.8, 0.9) (registered with (0.9, 0.999), restored (0.9, 0.999))',
        ),
        (
            {"amsgrad": True},
            'optimizer.param_groups[0]["amsgrad"] = True (registered with False, restored False)',
        ),
    ],
)
def test_an_option_that_the_script_has_changed_is_named_once(
    changed: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the schedule's own changes. And at the next restart the new script is the run's."""
    store = saved(small)

    def other() -> Job:
        return small(lambda params: torch.optim.AdamW(params, **{"lr": 0.01, **changed}))

    (line,) = lines_of(store, other, caplog)
    assert said in line
    assert lines_of(store, other, caplog) == []


def test_a_schedule_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    store = saved(small)
    assert lines_of(store, small, caplog) == []
    assert lines_of(store, small, caplog) == []


def test_the_printed_line_sets_the_new_option(caplog: pytest.LogCaptureFixture) -> None:
    store = saved(small)
    job = small(lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.5))
    with guarded(store, job.values) as guard:
        guard.restore()
        (line,) = (each for each in caplog.messages if "other options" in each)
        optimizer = job.values["optimizer"]
        assert optimizer.param_groups[0]["weight_decay"] == 0.01
        exec(line.partition("guard.restore(): ")[2].partition(" (registered")[0], {"optimizer": optimizer})
        assert optimizer.param_groups[0]["weight_decay"] == 0.5


class Norm(enum.IntEnum):
    SPECTRAL = 1
    SIGN = 2


class Normed(torch.optim.SGD):
    """An optimizer with an option of its own class."""

    def __init__(self, params: Any, norm: Norm = Norm.SIGN) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        for group in self.param_groups:
            group["norm"] = norm


def test_an_option_of_an_enum_comes_back_as_a_member(caplog: pytest.LogCaptureFixture) -> None:
    make = unfreezing(if_not_there, Normed)
    store = saved(make)
    job = make()
    with guarded(store, job.values) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        guard.restore()
    groups = job.values["optimizer"].param_groups
    assert [group.get("norm") for group in groups] == [Norm.SIGN, None]
    assert type(groups[0]["norm"]) is Norm
    assert "other options" not in caplog.text
    (line,) = lines_of(store, unfreezing(if_not_there, lambda params: Normed(params, Norm.SPECTRAL)), caplog)
    assert '["norm"] = Norm.SPECTRAL (registered with Norm.SIGN, restored Norm.SIGN)' in line


# --- new layers ---


class Grown(nn.Module):
    """A model with parts that an earlier one lacks, in the middle of what the optimizer steps."""

    def __init__(self, *new: str) -> None:
        super().__init__()
        seed()
        self.body = nn.Linear(4, 4)
        if "adapter" in new:
            self.adapter = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        if "bias" in new:
            self.gain = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)


def grown(*new: str, own_group: bool = False) -> dict[str, Any]:
    model = Grown(*new)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in model.named_parameters() if not name.startswith("adapter")]},
        {"params": [p for name, p in model.named_parameters() if name.startswith("adapter")], "lr": 0.2},
    ]
    groups = groups if own_group and "adapter" in new else [{"params": [*model.parameters()]}]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize("own_group", [False, True])
@pytest.mark.parametrize(
    ("new", "missing"),
    [
        (["adapter"], ("model.adapter",)),
        (["adapter", "bias"], ("model.adapter", "model.gain")),
        (["bias"], "model.gain"),
        (["adapter"], ("model.adapter.0", "model.adapter.1.weight", "model.adapter.1")),
    ],
)
def test_a_layer_that_the_checkpoint_lacks_keeps_its_values(
    new: list[str], missing: Any, own_group: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its group too; it begins without moments, and all else is the checkpoint's. The next restart needs no `missing`."""
    store, old = WatchedStore(), grown()
    with guarded(store, old) as guard:
        guard.restore()
        guard.save()
    fresh = grown(*new, own_group=own_group)
    model, optimizer = fresh["model"], fresh["optimizer"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    with guarded(store, fresh) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        guard.restore(missing=missing)
        (line,) = caplog.messages
        assert "missing in the checkpoint" in line
        theirs = old["model"].state_dict()
        for name, tensor in model.state_dict().items():
            assert (
                torch.equal(tensor, theirs[name]) if name in theirs else (tensor == 7).all() or "1." in name
            )
        for name, parameter in model.named_parameters():
            assert (parameter in optimizer.state) == (name in theirs)
        guard.step()
        guard.save()
    again = grown(*new, own_group=own_group)
    with guarded(store, again) as guard:
        caplog.clear()
        guard.restore()
        assert different(bits(again), bits(fresh)) == []
        assert caplog.messages == []


def test_a_layer_that_is_missing_is_refused_with_what_to_type() -> None:
    store, old = WatchedStore(), grown()
    with guarded(store, old) as guard:
        guard.restore()
        guard.save()
    fresh = grown("adapter")
    before = bits(fresh)
    with guarded(store, fresh) as guard:
        with pytest.raises(StateError, match=r"guard\.restore\(missing=\('model\.adapter\.0',\)\)"):
            guard.restore()
        with pytest.raises(StateError, match=r"missing there: .*adapter\.1"):
            guard.restore(missing=("model.adapter.0",))
        with pytest.raises(UsageError, match=r"nothing is registered as 'model\.adapt'"):
            guard.restore(missing=("model.adapt",))
    assert different(bits(fresh), before) == []


def test_a_layer_that_is_not_missing_is_restored_although_it_may_be() -> None:
    store, old = WatchedStore(), grown("adapter")
    with guarded(store, old) as guard:
        guard.restore()
        guard.save()
    fresh = grown("adapter")
    nn.init.zeros_(fresh["model"].adapter[0].weight)
    with guarded(store, fresh) as guard:
        guard.restore(missing=("model.adapter",))
    assert different(bits(fresh), bits(old)) == []
