"""Wrappers, schedulers and schedules of a registered optimizer that are not registered: each is named in one line, and exact loops log nothing."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from tests.fakes import foreign_optimizers as foreign
from tests.fakes.loops import said
from tests.fakes.training import Job, guarded, seed, step_on
from tests.fakes.watched_store import WatchedStore
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

#: Makes something of the registered optimizer, and returns what the loop calls in each turn.
Make = Callable[[Optimizer], Any]


class Around:
    """A wrapper that is no `Optimizer`, in the manner of own code."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.begin()

    def begin(self) -> None: ...

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        self.inner.step()

    def params(self) -> list[torch.Tensor]:
        return [p for group in self.inner.param_groups for p in group["params"]]


class SlowInDict(Around):
    def begin(self) -> None:
        self.slow = {p: p.detach().clone() for p in self.params()}

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        for param, slow in self.slow.items():
            param.copy_(slow.lerp_(param, 0.5))


class LateAverage(Around):
    def begin(self) -> None:
        self.mean: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        grads = [p.grad for p in self.params() if p.grad is not None]
        before = self.mean or grads
        self.mean = [m.lerp(g, 0.1) for m, g in zip(before, grads, strict=True)]
        super().step()


def without_source(inner: Optimizer) -> Any:
    made: dict[str, Any] = {"LateAverage": LateAverage}
    exec("class Written(LateAverage):\n    def step(self): LateAverage.step(self)", made)
    return made["Written"](inner)


class Clipping(Around):
    def begin(self) -> None:
        self.norms: deque[float] = deque(maxlen=4)

    def step(self) -> None:
        largest = max(self.norms, default=1.0)
        self.norms.append(float(nn.utils.clip_grad_norm_(self.params(), largest)))
        super().step()


class Feedback(Around):
    def begin(self) -> None:
        self.error = [torch.zeros_like(p) for p in self.params()]

    @torch.no_grad()
    def step(self) -> None:
        for param, error in zip(self.params(), self.error, strict=True):
            assert param.grad is not None
            whole = param.grad + error
            param.grad.copy_(whole.sign() * whole.abs().mean())
            error.copy_(whole - param.grad)
        super().step()


class Shown(Around):
    """Keeps numbers and tensors that are shown, or that each step sets before it reads them."""

    def begin(self) -> None:
        self.number, self.norm, self.calls, self.grads = 0, 0.0, {"step": 0}, [torch.zeros(1)]

    def step(self) -> None:
        self.number += 1
        self.calls["step"] += 1
        if self.number % 2:
            print(self.calls)
        self.grads = [p.grad for p in self.params() if p.grad is not None]
        self.norm = float(torch.stack([g.norm() for g in self.grads]).norm())
        for grad in self.grads:
            grad.mul_(1 / max(1.0, self.norm))
        super().step()

    def report(self) -> str:
        return f"{self.number}: {self.norm}"


class Counted(Around):
    def begin(self) -> None:
        self.notes = {"number": 0}

    def step(self) -> None:
        self.notes["number"] += 1
        if self.notes["number"] % 3:
            super().step()


class Warmed(Around):
    """Keeps nothing but a bare number, which decides."""

    def begin(self) -> None:
        self.number = 0

    @property
    def rate(self) -> float:
        return min(0.1, self.number / 100)

    def step(self) -> None:
        self.number += 1
        for group in self.inner.param_groups:
            group["lr"] = self.rate
        super().step()


class EveryFourthTurn(Around):
    """Keeps a number that changes in each fourth turn only."""

    def begin(self) -> None:
        self.scales = [1.0]

    def step(self) -> None:
        super().step()
        if self.inner.state[self.params()[0]]["step"] % 4 == 0:
            self.scales[0] *= 0.5
        self.inner.param_groups[0]["lr"] = 0.1 * self.scales[0]


class Scratch(Around):
    """Has the same numbers at each boundary."""

    def begin(self) -> None:
        self.pending, self.sizes = 0, [p.numel() for p in self.params()]

    def step(self) -> None:
        self.pending += 1
        super().step()
        self.pending = 0


class Measured(Around):
    """Sets tensors anew in each step, under a condition and in a block, and reads none."""

    def begin(self) -> None:
        self.limit, self.norm, self.before = 1.0, torch.zeros(1), list[torch.Tensor]()

    def step(self) -> None:
        if self.limit:
            self.norm = nn.utils.clip_grad_norm_(self.params(), self.limit)
        with torch.no_grad():
            self.before = [p.clone() for p in self.params()]
        super().step()


class Measuring(Around):
    """Refills snapshots in each step, by item, and reads them behind it."""

    def begin(self) -> None:
        self.before, self.delta = [p.detach().clone() for p in self.params()], 0.0
        self.old: dict[torch.Tensor, torch.Tensor] = {}

    def _apply_step(self) -> None:
        for before, p in zip(self.before, self.params(), strict=True):
            before.copy_(p.detach())
        super().step()
        self.delta = sum(
            float((p.detach() - before).norm()) for p, before in zip(self.params(), self.before, strict=True)
        )

    def step(self) -> None:
        for p in self.params():
            if p.grad is None:
                continue
            self.old[p] = p.detach().clone()
        with torch.no_grad():
            for p in self.params():
                p.add_(0.1).copy_(self.old[p])
            for _ in range(2):
                for group in self.inner.param_groups:
                    for p in group["params"]:
                        self.old[p] = p.clone()
            for group in self.inner.param_groups:
                for p in group["params"]:
                    p.copy_(self.old[p])
        self._apply_step()


class Trainer(Around):
    """Wraps no optimizer: it has the model too, and counts what it likes."""

    def begin(self) -> None:
        self.model, self.number, self.last = nn.Linear(1, 1), 0, torch.zeros(1)

    def step(self) -> None:
        self.number += 1
        self.last = self.last + 1
        super().step()


class TrainerOfSeveral(Trainer):
    def begin(self) -> None:
        super().begin()
        self.nets = {"one": self.model}
        del self.model


class TrainerWithNamespace(Trainer):
    def begin(self) -> None:
        super().begin()
        self.run = SimpleNamespace(model=self.model)
        del self.model


class SlowBesideModel(SlowInDict):
    def begin(self) -> None:
        super().begin()
        self.model = nn.Linear(1, 1)


def job_of(make: Make, registered: Callable[[Optimizer, Any], dict[str, Any]]) -> Job:
    seed()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    made = make(optimizer)

    def step(number: int) -> None:
        model.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        if hasattr(made, "zero_grad"):
            made.step()
            return
        optimizer.step()
        if isinstance(made, lr_scheduler.ReduceLROnPlateau):
            made.step(1.0)
        elif hasattr(made, "step"):
            made.step()
        else:
            made(number)

    return Job({"model": model, **registered(optimizer, made)}, step)


def inner(optimizer: Optimizer, made: Any) -> dict[str, Any]:
    return {"optimizer": optimizer}


def both(optimizer: Optimizer, made: Any) -> dict[str, Any]:
    return {"optimizer": optimizer, "made": made}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in said(caplog) if "SG425" in each]


def lives(make: Callable[[], Job], cut: int) -> None:
    """Train to a boundary, save, and go on in another life."""
    store = WatchedStore()
    for until in (cut, cut + 5):
        job = make()
        with guarded(store, job.values) as guard:
            step_on(guard, job, *range(guard.restore(), until))
            guard.save()


WRAPPERS: dict[str, tuple[Make, str]] = {
    "slow weights in a dict": (SlowInDict, "SlowInDict.slow changes"),
    "average that the first step makes": (LateAverage, "LateAverage.mean changes"),
    "average in code without source": (without_source, "Written.mean changes"),
    "count in a dict": (Counted, "Counted.notes changes"),
    "bare number": (Warmed, "Warmed.number changes"),
    "number that changes in each fourth turn": (EveryFourthTurn, "EveryFourthTurn.scales changes"),
    "slow weights beside the model": (SlowBesideModel, "SlowBesideModel.slow changes"),
    "history of norms": (Clipping, "Clipping.norms changes"),
    "error feedback": (Feedback, "Feedback.error changes"),
    "Optimizer with a state_dict": (foreign.WithMean, "WithMean.mean changes"),
    "Optimizer with state of its own": (foreign.Lookahead, "Lookahead.state changes"),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_unregistered_wrapper_with_state_is_named_in_one_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, expected = WRAPPERS[kind]
    job = job_of(make, inner)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(9))
    (line,) = lines(caplog)
    assert line.startswith(expected)
    assert "register that object, a wrapper in its optimizer's place" in line


class AverageOfLarge(LateAverage):
    """Averages large gradients only."""

    def step(self) -> None:
        if self.params()[0].numel() > 12:
            super().step()
        else:
            self.inner.step()


def test_second_wrapper_of_a_class_is_watched_too(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 6))
    optimizers = {str(at): torch.optim.SGD(layer.parameters(), lr=0.1) for at, layer in enumerate(model)}
    wrappers = [AverageOfLarge(each) for each in optimizers.values()]

    def step(number: int) -> None:
        model.zero_grad()
        model(torch.randn(5, 2)).square().mean().backward()
        for each in wrappers:
            each.step()

    job = Job({"model": model, **optimizers}, step)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(5))
    (line,) = lines(caplog)
    assert line.startswith("AverageOfLarge 2.mean changes")


def test_wrapper_that_training_makes_later_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def late(optimizer: Optimizer) -> Any:
        steps, wrapper = itertools.count(), optimizer

        def step() -> None:
            nonlocal wrapper
            if next(steps) == 5:
                wrapper = SlowInDict(optimizer)  # type: ignore[assignment]
            wrapper.step()

        return SimpleNamespace(zero_grad=optimizer.zero_grad, step=step)

    job = job_of(late, inner)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(33))
    assert [each.startswith("SlowInDict.slow changes") for each in lines(caplog)] == [True]


@pytest.mark.parametrize(
    "make",
    [
        Around,
        Scratch,
        Measured,
        Measuring,
        Shown,
        Trainer,
        TrainerOfSeveral,
        TrainerWithNamespace,
        foreign.Accelerated,
    ],
)
def test_wrapper_without_state_needs_no_registration(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    lives(lambda: job_of(make, inner), cut=4)
    assert said(caplog) == []


@pytest.mark.parametrize("make", [foreign.WithMean, foreign.Lookahead])
def test_registered_wrapper_is_not_named(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    lives(lambda: job_of(make, lambda optimizer, made: {"optimizer": made}), cut=4)
    assert lines(caplog) == []


@pytest.mark.parametrize("notes", [lambda made: made.notes, lambda made: {"of": made.notes}])
def test_container_of_a_wrapper_that_is_registered_is_not_named(
    notes: Callable[[Any], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    lives(
        lambda: job_of(Counted, lambda optimizer, made: {"optimizer": optimizer, "notes": notes(made)}), cut=4
    )
    assert said(caplog) == []


class HookState:
    """Keeps what compression left over, as PowerSGD's does."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: dict[int, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error = state["error"]


@pytest.mark.parametrize("registered", [False, True])
def test_state_of_a_communication_hook_is_named_unless_it_is_registered(
    registered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state = HookState()
    job = job_of(lambda optimizer: lambda number: state.error.update({0: torch.ones(2)}), inner)
    job.values["model"]._comm_hooks = [(print, state), (print, None)]
    with guarded(WatchedStore(), {**job.values, **({"state": state} if registered else {})}) as guard:
        guard.restore()
        step_on(guard, job, *range(5))
    assert [each.startswith("HookState.error changes") for each in lines(caplog)] == [True] * (not registered)


# --- schedulers of torch --------------------------------------------------------------------------------------


class Holder:
    """Saves what it holds, in a slot."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> Any:
        return self.held.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.held.load_state_dict(state)


class MethodHolder:
    """Saves what it holds by methods alone."""

    def __init__(self, held: Any) -> None:
        self.state_dict, self.load_state_dict = held.state_dict, held.load_state_dict


class Deep:
    """Saves what it holds four steps deep."""

    def __init__(self, held: Any) -> None:
        self.one = SimpleNamespace(two=SimpleNamespace(three=SimpleNamespace(held=held)))

    def state_dict(self) -> Any:
        return self.one.two.three.held.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.one.two.three.held.load_state_dict(state)


class ByFunction(Holder):
    """Saves what only a function's cell, or a partial, has."""

    def __init__(self, held: Any, make: Callable[[Any], Any] = lambda held: lambda: held) -> None:
        super().__init__(make(held))

    def state_dict(self) -> Any:
        return self.held().state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.held().load_state_dict(state)


class InExtraState(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def get_extra_state(self) -> Any:
        return self.held.state_dict()

    def set_extra_state(self, state: Any) -> None:
        self.held.load_state_dict(state)


def by_partial(held: Any) -> Any:
    return ByFunction(held, lambda held: partial(lambda each: each, held))


def sequential(optimizer: Optimizer) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [3])


SCHEDULERS: dict[str, Make] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 100),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 40),
    "SequentialLR": sequential,
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_unregistered_scheduler_is_named_before_the_first_step(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it changes nothing yet; and of several in one the outer one."""
    job = job_of(SCHEDULERS[kind], inner)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        (line,) = lines(caplog)
        assert line.startswith(f"a scheduler of optimizer is not registered ({kind}), so a resumed run")
        assert "unless it follows from the step's number" in line
        step_on(guard, job, *range(9))
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize(("made", "named"), [(0, 0), (3, 3), (5, 7)])
def test_scheduler_that_training_makes_is_named_at_the_next_look(
    made: int, named: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At boundaries 1, 2, 4, 8 and so on, and if another one was there and is gone."""
    job = job_of(lambda optimizer: lambda number: None, inner)
    optimizer = job.values["optimizer"]
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(made))
        scheduler = lr_scheduler.StepLR(optimizer, 100)
        step_on(guard, job, *range(made, named))
        assert lines(caplog) == []
        step_on(guard, job, *range(named, 17))
    assert [type(scheduler).__name__ in each for each in lines(caplog)] == [True]


def test_scheduler_that_leaves_no_mark_is_named_when_it_moves_the_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_of(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=2), inner)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(9))
    (line,) = lines(caplog)
    assert line.startswith("a scheduler of optimizer is not registered (ReduceLROnPlateau)")


def test_scheduler_that_only_a_hook_of_the_optimizer_holds_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def hooked(optimizer: Optimizer) -> Any:
        scheduler = lr_scheduler.StepLR(optimizer, 100)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
        return lambda number: None

    job = job_of(hooked, inner)
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("schedule", [None, lr_scheduler.StepLR])
def test_process_is_searched_only_for_a_scheduler_that_left_a_sign(
    schedule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not without one, and not beside a registered one: a search takes 50 ns for each object of the process."""
    ask = gc.get_referrers

    def counted(*objects: Any) -> list[Any]:
        assert not any(isinstance(each, Optimizer) for each in objects)
        return ask(*objects)

    monkeypatch.setattr(gc, "get_referrers", counted)

    def registered(optimizer: Optimizer, made: Any) -> dict[str, Any]:
        return both(optimizer, made) if schedule else inner(optimizer, made)

    make = (lambda o: schedule(o, 1)) if schedule else (lambda o: lambda number: None)
    lives(lambda: job_of(make, registered), cut=4)


@pytest.mark.parametrize("kind", few_fast([*SCHEDULERS, "ReduceLROnPlateau"], 2))
@pytest.mark.parametrize(
    "holder", [lambda made: made, Holder, MethodHolder, Deep, ByFunction, by_partial, InExtraState]
)
def test_registered_scheduler_is_not_named(
    kind: str, holder: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    make = SCHEDULERS.get(kind, lr_scheduler.ReduceLROnPlateau)
    lives(lambda: job_of(make, lambda o, made: {"optimizer": o, "made": holder(made)}), cut=4)
    assert said(caplog) == []


def test_scheduler_that_is_gone_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    def probe(optimizer: Optimizer) -> Any:
        lr_scheduler.StepLR(optimizer, 1)
        return lambda number: None

    lives(lambda: job_of(probe, inner), cut=4)
    assert said(caplog) == []


# --- schedules of one's own -----------------------------------------------------------------------------------


def by_number(change: Callable[[dict[str, Any], int], None]) -> Make:
    return lambda optimizer: lambda number: change(optimizer.param_groups[0], number + 1)


def decay(group: dict[str, Any], number: int) -> None:
    group["weight_decay"] = 0.01 + 0.01 * number


def momentum(group: dict[str, Any], number: int) -> None:
    group["betas"] = (0.9, 0.99 - 0.01 * number)


def by_epoch(group: dict[str, Any], number: int) -> None:
    group["lr"] = 0.1 / (1 + number // 3)


def halves(group: dict[str, Any], number: int) -> None:
    group["lr"] = 0.1 / number


def restarting(group: dict[str, Any], number: int) -> None:
    group["lr"] = 0.2 * 0.5 ** ((number - 1) % 5)


def alternating(group: dict[str, Any], number: int) -> None:
    group["lr"] = 0.05 if number % 2 else 0.1


def long(group: dict[str, Any], number: int) -> None:
    group["lr"] = 0.1 / (2 + number % 17)


@pytest.mark.parametrize("cut", few_fast([6, 17, 1, 5, 7, 20], 2))
@pytest.mark.parametrize("change", [decay, momentum, by_epoch, halves, alternating, restarting, long])
def test_schedule_by_the_number_of_the_step_is_not_named(
    change: Callable[[dict[str, Any], int], None], cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    lives(lambda: job_of(by_number(change), inner), cut)
    assert said(caplog) == []


PERIODIC: dict[str, Make] = {
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=17),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i % 17)),
    "in another": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i)) for _ in range(2)], [17]
    ),
}


@pytest.mark.parametrize("kind", PERIODIC)
@pytest.mark.parametrize("holder", [lambda made: made, Holder])
def test_registered_scheduler_that_begins_a_period_is_not_named(
    kind: str, holder: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    lives(lambda: job_of(PERIODIC[kind], lambda o, made: {"optimizer": o, "made": holder(made)}), cut=16)
    assert said(caplog) == []
