"""Every optimizer and scheduler of torch: saved in the middle, restored into fresh objects, trained on bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from spotguard.providers.errors import StateError
from tests.fakes.training import Job, different, finished, guarded, restored, seed, small, step_on, trajectory
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

TOTAL = 6
#: The step that is saved, for `parametrize`.
STOPS = few_fast([3, 1, 5])


def saved_and_resumed(make: Callable[[], Job], folder: Path, stop: int = 3) -> None:
    """Train to the middle, save, restore into fresh objects, train to the end: always the plain run's bits."""
    expected = trajectory(make, TOTAL)
    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        assert guard.save().step == 0
        step_on(guard, job, *range(stop))
        assert different(job.bits(), expected[stop]) == [], "guarding changed something"
        guard.save()
    step, state = restored(folder, make)
    assert step == stop
    assert different(state, expected[stop]) == []
    assert different(finished(folder, make, TOTAL)[1], expected[TOTAL]) == []


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adam-capturable-like": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "asgd": torch.optim.ASGD,
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, history_size=3),
    "lbfgs-wolfe": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    "rprop": torch.optim.Rprop,
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def side_by_side(jobs: dict[str, Job]) -> Job:
    """All of them under one guard: a difference names the job by its path."""

    def step(number: int) -> None:
        for job in jobs.values():
            job.step(number)

    values = {f"{kind}_{name}": each for kind, job in jobs.items() for name, each in job.values.items()}
    return Job(values, step)


@pytest.mark.parametrize("stop", STOPS)
def test_every_optimizer_goes_on_bit_for_bit(stop: int, folder: Path) -> None:
    """Moments, counters, histories: in value, type, and place."""

    def make() -> Job:
        return side_by_side(
            {kind.replace("-", "_"): small(optimizer) for kind, optimizer in OPTIMIZERS.items()}
        )

    saved_and_resumed(make, folder, stop)


def test_none_of_torchs_optimizers_is_forgotten() -> None:
    """A new one in torch is a new line here."""
    theirs = {
        cls.__name__.lower()
        for cls in vars(torch.optim).values()
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
    }
    tested = {name.partition("-")[0] for name in OPTIMIZERS} | {"sparseadam", "muon"}
    assert theirs <= tested


@pytest.mark.parametrize("stop", STOPS)
def test_sparse_adam_goes_on_bit_for_bit(stop: int, folder: Path) -> None:
    """Gradients may be sparse; the state is not, and its step is a plain integer."""

    def make() -> Job:
        seed()
        model = nn.Embedding(20, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        job = Job({"model": model, "optimizer": optimizer})

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(torch.randint(20, (5,))).square().sum().backward()
            optimizer.step()

        job.step = step
        return job

    saved_and_resumed(make, folder, stop)


@pytest.mark.parametrize("stop", STOPS)
def test_muon_goes_on_bit_for_bit(stop: int, folder: Path) -> None:
    """It takes matrices only; the rest of the model has an optimizer of its own."""

    def make() -> Job:
        seed()
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        one, two = torch.optim.Muon(matrices), torch.optim.AdamW(others)
        job = Job({"model": model, "matrices": one, "others": two})

        def step(number: int) -> None:
            model.zero_grad()
            model(torch.rand(4, 8)).square().sum().backward()
            one.step()
            two.step()

        job.step = step
        return job

    saved_and_resumed(make, folder, stop)


@pytest.mark.parametrize("foreach", [False, True])
def test_moments_keep_their_own_dtype(foreach: bool, folder: Path) -> None:
    """Moments in float32 beside weights in bfloat16 come back as they were (torch's own loading would round them)."""

    def make() -> Job:
        seed()
        model = nn.Linear(8, 4).to(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
        for p in model.parameters():
            optimizer.state[p] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.rand(p.shape),
                "exp_avg_sq": torch.rand(p.shape),
            }
        return Job({"model": model, "optimizer": optimizer})

    job = make()
    expected = job.bits()
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
    fresh = make()
    fresh.values["optimizer"].state.clear()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 0
        assert different(fresh.bits(), expected) == []


def test_a_learning_rate_that_is_a_tensor_is_restored_in_place(folder: Path) -> None:
    """Who holds it, the user or a compiled step, goes on holding the optimizer's."""
    rate = torch.tensor(0.5)
    job = small(lambda p: torch.optim.Adam(p, lr=rate))
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    changed = float(job.values["optimizer"].param_groups[0]["lr"])
    fresh_rate = torch.tensor(0.5)
    fresh = small(lambda p: torch.optim.Adam(p, lr=fresh_rate))
    with guarded(folder, fresh.values) as guard:
        guard.restore()
    assert fresh.values["optimizer"].param_groups[0]["lr"] is fresh_rate
    assert float(fresh_rate) == changed != 0.5


def test_parameters_that_join_in_the_middle_are_followed(folder: Path) -> None:
    """A layer that is unfrozen at step 2 is in every later save, with its moments."""

    def make() -> Job:
        seed()
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model[1].parameters(), lr=0.1)
        job = Job({"model": model, "optimizer": optimizer})

        def step(number: int) -> None:
            if number == 2:
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
            optimizer.zero_grad()
            model(torch.rand(4, 8)).square().sum().backward()
            optimizer.step()

        job.step = step
        return job

    expected = trajectory(make, TOTAL)
    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    assert finished(folder, make, TOTAL) == (4, expected[TOTAL])


def test_parameters_that_nobody_registered_are_refused_when_they_join(folder: Path) -> None:
    """They would not be saved: `guard.step()` says so at once, not the restore a day later."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        job.values["optimizer"].add_param_group({"params": [nn.Parameter(torch.rand(3))]})
        job.step(0)
        with pytest.raises(StateError, match="no registered module holds"):
            guard.step()


def test_an_optimizer_without_its_model_is_refused(folder: Path) -> None:
    """Moments without the weights they belong to are no checkpoint."""
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    with pytest.raises(StateError, match="register the model too"), guarded(folder, {"optimizer": optimizer}):
        pass
    assert list(folder.iterdir()) == []


def test_an_optimizer_with_a_state_dict_of_its_own_is_believed(folder: Path) -> None:
    """It knows better what it is made of."""

    class Own(torch.optim.SGD):
        calls = 0

        def state_dict(self) -> dict[str, Any]:
            return {"calls": self.calls, "inner": super().state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls = state["calls"]
            super().load_state_dict(state["inner"])

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            return super().step(closure)

    saved_and_resumed(lambda: small(lambda p: Own(p, lr=0.1, momentum=0.9)), folder)


# --- schedulers ----------------------------------------------------------------------------------------------

Scheduler = Callable[[Optimizer], Any]
SCHEDULERS: dict[str, Scheduler] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 2, 4]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05),
}


def scheduled(kind: str) -> Job:
    seed()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own words about the order of its calls
        scheduler = SCHEDULERS[kind](optimizer)
    job = Job({"model": model, "optimizer": optimizer, "scheduler": scheduler})

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = model(torch.rand(4, 4)).square().sum()
        loss.backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(*([float(loss.detach())] if kind == "ReduceLROnPlateau" else []))

    job.step = step
    return job


def test_every_scheduler_goes_on_bit_for_bit(folder: Path) -> None:
    """Counters (a `Counter` too), patience, inner schedulers: in value and type."""
    saved_and_resumed(lambda: side_by_side({kind: scheduled(kind) for kind in SCHEDULERS}), folder)


def test_none_of_torchs_schedulers_is_forgotten() -> None:
    """A new one in torch is a new line here."""
    base = lr_scheduler.LRScheduler
    theirs = {
        name
        for name, cls in vars(lr_scheduler).items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base and not name.startswith("_")
    }
    assert theirs <= set(SCHEDULERS)


# --- state that is in no group -------------------------------------------------------------------------------


def two_layers(momentum: float = 0.9) -> tuple[nn.Sequential, torch.optim.SGD]:
    seed()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [{"params": layer.parameters()} for layer in model]
    return model, torch.optim.SGD(groups, lr=0.1, momentum=momentum)


def test_moments_of_a_group_that_was_taken_out_come_back(folder: Path) -> None:
    """Torch keeps them, for when the head is thawed; so do we."""
    model, optimizer = two_layers()
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        guard.step()
        del optimizer.param_groups[1]
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        guard.step()
        guard.save()
    fresh, its = two_layers()
    del its.param_groups[1]
    with guarded(folder, {"model": fresh, "optimizer": its}) as guard:
        assert guard.restore() == 2
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(optimizer.state[old]["momentum_buffer"], its.state[new]["momentum_buffer"])


def test_state_under_keys_of_its_own_comes_back(folder: Path) -> None:
    """Keys that are no parameters are legal in torch: numbers, tuples, with tensors or plain values behind them."""
    model, optimizer = two_layers()
    state: Any = optimizer.state
    state["global"] = {"k": 1, "ema": torch.arange(3.0)}
    state["plain", 7] = torch.ones(2)
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        guard.save()
    fresh, its = two_layers()
    with guarded(folder, {"model": fresh, "optimizer": its}) as guard:
        guard.restore()
    found: Any = its.state
    assert list(found) == ["global", ("plain", 7)]
    assert found["global"]["k"] == 1
    assert torch.equal(found["global"]["ema"], torch.arange(3.0))
    assert torch.equal(found["plain", 7], torch.ones(2))


def test_state_of_a_layer_that_was_thrown_away_is_left_out_loudly(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It belongs to no group, so no step reads it: the save goes on without it, and says so once."""
    model, optimizer = two_layers()
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        guard.step()
        del optimizer.param_groups[1]
        del model[1]
        guard.step()
        guard.step()
        assert guard.save().step == 3
    assert caplog.text.count("keeps state of 2 parameters that are no longer") == 1
    assert "no save is possible" not in caplog.text


def test_a_closed_guard_leaves_the_optimizer_as_it_was(folder: Path) -> None:
    """No hook of ours stays on it."""
    model, optimizer = two_layers()
    with guarded(folder, {"model": model, "optimizer": optimizer}) as guard:
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        guard._state.close()
        assert not optimizer._optimizer_step_pre_hooks
