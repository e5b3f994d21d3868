"""Objects of another class than the checkpoint's, scalers that are enabled later, and embeddings that were resized."""

from __future__ import annotations

import functools
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from spotguard.providers.errors import StateError
from tests.fakes.training import Job, bits, different, finished, guarded, seed, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

Make = Callable[[Optimizer], Any]


class Wrapped:
    """A scheduler in a wrapper that shows its state as its own, as Accelerate's does."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> Any:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.scheduler.load_state_dict(state)


class Warm:
    """A scheduler that is not torch's."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def get_last_lr(self) -> list[float]:
        return [0.1]

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)


class Cold(Warm):
    """Another one, which accepts the other's state."""


class OwnState(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {"own": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["own"])


class OtherState(OwnState):
    """Another optimizer with a state of its own."""


def step_lr(optimizer: Optimizer) -> Any:
    return lr_scheduler.StepLR(optimizer, 3)


def exponential(optimizer: Optimizer) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


def sequence(*makes: Make) -> Make:
    return lambda o: lr_scheduler.SequentialLR(o, [make(o) for make in makes], milestones=[2])


def saved(values: dict[str, Any]) -> WatchedStore:
    store = WatchedStore()
    with guarded(store, values) as guard:
        guard.restore()
        guard.save()
    return store


def values_of(make: Make, cls: Callable[..., Optimizer] = torch.optim.SGD) -> dict[str, Any]:
    seed()
    model = nn.Linear(2, 2)
    optimizer = cls(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (step_lr, exponential, "scheduler is ExponentialLR here and StepLR in the checkpoint"),
        (
            exponential,
            lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
            "CosineAnnealingLR here and ExponentialLR",
        ),
        (
            sequence(step_lr, exponential),
            sequence(exponential, step_lr),
            r"SequentialLR\(ExponentialLR, StepLR\) here and SequentialLR\(StepLR, ExponentialLR\)",
        ),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o),
            step_lr,
            "StepLR here and ReduceLROnPlateau in the checkpoint",
        ),
        (Warm, Cold, "scheduler is Cold here and Warm in the checkpoint"),
        (lambda o: Wrapped(step_lr(o)), lambda o: Wrapped(exponential(o)), "ExponentialLR here and StepLR"),
    ],
)
def test_a_scheduler_of_another_class_is_refused_and_nothing_is_changed(
    before: Make, now: Make, said: str
) -> None:
    store = saved(values_of(before))
    values = values_of(now)
    nn.init.ones_(values["model"].weight)
    untouched = bits(values)
    with guarded(store, values) as guard, pytest.raises(StateError, match=said):
        guard.restore()
    assert different(bits(values), untouched) == []


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (step_lr, step_lr),
        (sequence(step_lr, exponential), sequence(step_lr, exponential)),
        (Warm, Warm),
        (step_lr, lambda o: Wrapped(step_lr(o))),
    ],
)
def test_a_scheduler_of_the_same_class_comes_back_without_a_word(
    before: Make, now: Make, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved(values_of(before))
    values = values_of(now)
    with guarded(store, values) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        guard.restore()
    assert caplog.messages == []


def test_an_optimizer_with_a_state_of_its_own_is_refused_for_another_class() -> None:
    store = saved(values_of(step_lr, OwnState))
    with (
        guarded(store, values_of(step_lr, OtherState)) as guard,
        pytest.raises(StateError, match="optimizer is OtherState here and OwnState in the checkpoint"),
    ):
        guard.restore()


# --- scalers ---


def scaler_job(enabled: Callable[[int], bool]) -> Callable[[], Job]:
    """Half-precision training whose scaler is made anew when it becomes enabled."""

    def make() -> Job:
        seed()
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=enabled(0))

        def step(number: int) -> None:
            optimizer.zero_grad()
            scaler.scale(model(torch.rand(2, 4)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return Job({"model": model, "optimizer": optimizer, "scaler": scaler}, step)

    return make


@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaler_comes_back_as_it_was_without_a_word(
    enabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, store = scaler_job(lambda number: enabled), WatchedStore()
    expected = trajectory(make, 5)
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1, 2)
        guard.save()
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert finished(store, make, 5) == (3, expected[5])
    assert caplog.messages == []


def test_a_scaler_that_is_enabled_later_begins_with_its_own_scale(caplog: pytest.LogCaptureFixture) -> None:
    store = saved(scaler_job(lambda number: False)().values)
    job = scaler_job(lambda number: True)()
    with guarded(store, job.values) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        guard.restore()
        (line,) = caplog.messages
        assert "scaler was not enabled when it was saved: it begins with its own scale of 1024.0" in line
        step_on(guard, job, 0, 1)
        guard.save()
    assert job.values["scaler"].get_scale() == 2048
    again = scaler_job(lambda number: True)()
    with guarded(store, again.values) as guard:
        guard.restore()
    assert again.values["scaler"].get_scale() == 2048


def test_a_scale_that_a_disabled_scaler_leaves_out_is_named(caplog: pytest.LogCaptureFixture) -> None:
    store = saved(scaler_job(lambda number: True)().values)
    with guarded(store, scaler_job(lambda number: False)().values) as guard, caplog.at_level(logging.WARNING):
        caplog.clear()
        guard.restore()
    (line,) = caplog.messages
    assert (
        "scaler is not enabled here, and was when it was saved: its scale of 1024.0 is not restored" in line
    )


# --- embeddings ---


class Words(nn.Module):
    """An embedding, and a head that may be tied to it."""

    def __init__(self, rows: int, cls: type[nn.Module] = nn.Embedding, *, tied: bool = False) -> None:
        super().__init__()
        seed()
        self.embed: Any = cls(rows, 4)
        self.head = nn.Linear(4, rows, bias=False)
        if tied:
            self.head.weight = self.embed.get_parameter("weight")


@pytest.mark.parametrize(("here", "there"), [(5, 7), (7, 5)])
@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("tied", [False, True])
def test_a_resized_embedding_is_named_with_what_gives_it_the_saved_rows(
    here: int, there: int, cls: type[nn.Module], tied: bool
) -> None:
    saved_model = Words(there, cls, tied=tied)
    store = saved({"model": saved_model})
    model = Words(here, cls, tied=tied)
    before = bits({"model": model})
    with guarded(store, {"model": model}) as guard, pytest.raises(StateError) as refused:
        guard.restore()
    text = str(refused.value)
    assert f"model.embed.weight is an embedding of {here} rows here and of {there} in the checkpoint" in text
    assert different(bits({"model": model}), before) == []
    exec(text.partition("as in ")[2].partition(", and resize")[0], {"torch": torch, "model": model})
    model.head = nn.Linear(4, there, bias=False)
    if tied:
        model.head.weight = model.embed.weight
    with guarded(store, {"model": model}) as guard:
        guard.restore()
    assert torch.equal(model.embed.weight, saved_model.embed.weight)


def test_a_run_that_resized_its_embedding_goes_on_with_the_saved_rows() -> None:
    """The remedy of the message, before the optimizer is made; the script's own step is behind."""

    def make(rows: int = 5) -> Job:
        seed()
        model = nn.Sequential(nn.Embedding(rows, 4), nn.Flatten(), nn.Linear(12, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(number: int) -> None:
            if number == 2:
                before, model[0] = model[0].get_parameter("weight"), nn.Embedding(7, 4)
                with torch.no_grad():
                    model[0].get_parameter("weight")[:5] = before
                optimizer.param_groups[0]["params"][0] = model[0].weight
                del optimizer.state[before]
            optimizer.zero_grad()
            model(torch.randint(5, (2, 3))).square().mean().backward()
            optimizer.step()

        return Job({"model": model, "optimizer": optimizer}, step)

    store, expected = WatchedStore(), trajectory(make, 6)
    job = make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(4))
        guard.save()
    with (
        guarded(store, make().values) as guard,
        pytest.raises(StateError, match=r"as in model\[0\] = torch\.nn\.Embedding\(7, 4\)"),
    ):
        guard.restore()
    assert finished(store, lambda: make(rows=7), 6) == (4, expected[6])


def test_a_layer_of_other_rows_that_is_no_embedding_is_named_by_its_shapes() -> None:
    store = saved({"model": nn.Linear(3, 4)})
    with (
        guarded(store, {"model": nn.Linear(3, 5)}) as guard,
        pytest.raises(StateError, match=r"model\.weight is \(5, 3\) .* here and \(4, 3\)"),
    ):
        guard.restore()


# --- functions of schedulers ----------------------------------------------------------------------------------


def with_constant(rate: float) -> Make:
    """Two functions of the same form."""
    one: Callable[[int], float] = lambda epoch: 0.9**epoch  # noqa: E731
    other: Callable[[int], float] = lambda epoch: 0.8**epoch  # noqa: E731
    return lambda o: lr_scheduler.LambdaLR(o, one if rate == 0.9 else other)


def power(epoch: int, rate: float) -> float:
    return rate**epoch


def by_default(rate: float) -> Make:
    def scale(epoch: int, rate: float = rate) -> float:
        return power(epoch, rate)

    return lambda o: lr_scheduler.LambdaLR(o, scale)


RATE = 0.9


def read() -> float:
    return RATE


def of_global(rate: float) -> Make:
    globals()["RATE"] = rate
    return lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: read() * RATE)


FUNCTIONS: dict[str, Callable[[float], Make]] = {
    "constant": with_constant,
    "closure": lambda rate: lambda o: lr_scheduler.LambdaLR(o, lambda epoch: rate**epoch),
    "default": by_default,
    "partial": lambda rate: lambda o: lr_scheduler.LambdaLR(o, functools.partial(power, rate=rate)),
    "global": of_global,
    "inside another": lambda rate: sequence(
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: rate ** (epoch + 1) if epoch else 1.0), exponential
    ),
    "scale of a cycle": lambda rate: (
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: rate**x, cycle_momentum=False)
    ),
    "in a wrapper": lambda rate: lambda o: Wrapped(lr_scheduler.LambdaLR(o, lambda epoch: rate**epoch)),
}


@pytest.mark.parametrize("now", [0.9, 0.8])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_scheduler_with_another_function_is_named_and_continues(
    kind: str, now: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A `state_dict()` of torch has no function. The same one, in another object, is no news."""
    store = saved(values_of(FUNCTIONS[kind](0.9)))
    with guarded(store, values_of(FUNCTIONS[kind](now))) as guard:
        assert guard.restore() == 0
    named = [each for each in caplog.messages if "calls another function than in the run" in each]
    assert len(named) == (now != 0.9)


def drawn(epoch: int) -> float:
    return random.random() + float(torch.rand(()))


def of_no_module() -> Callable[[int], float]:
    made: dict[str, Any] = {}
    exec("made = lambda epoch: 0.5", {"__builtins__": __builtins__}, made)
    return made["made"]  # type: ignore[no-any-return]


def layered() -> Callable[[int], float]:
    """Sixty layers of two functions, each of which names both of the next layer: there are 2**60 ways through them."""
    made: dict[str, Any] = {"f60": lambda epoch: 0.5, "g60": lambda epoch: 0.5}
    for layer in range(59, -1, -1):
        text = f"lambda epoch: f{layer + 1}(epoch) if epoch < 1e9 else g{layer + 1}(epoch)"
        made |= {f"f{layer}": eval(text, made), f"g{layer}": eval(text, made)}
    return made["f0"]  # type: ignore[no-any-return]


def failing(epoch: int) -> float:
    if epoch > 5:
        raise ArithmeticError
    return math.nan


def unmoved(epoch: int) -> float:
    return 0.5 if RATE else 1.0


@pytest.mark.parametrize("function", [drawn, of_no_module(), layered(), failing, unmoved])
def test_scheduler_with_a_function_of_equal_values_is_not_named(
    function: Callable[[int], float], caplog: pytest.LogCaptureFixture
) -> None:
    of_global(0.9)
    store = saved(values_of(lambda o: lr_scheduler.LambdaLR(o, function)))
    of_global(0.8)
    with guarded(store, values_of(lambda o: lr_scheduler.LambdaLR(o, function))) as guard:
        guard.restore()
    assert [each for each in caplog.messages if "another function" in each] == []


def test_register_leaves_what_functions_of_a_scheduler_change() -> None:
    """A function may count its calls and draw, and a method may change its object."""
    count, called = 0, list[int]()

    def counting(epoch: int) -> float:
        nonlocal count
        count += 1
        return drawn(epoch)

    def kept(epoch: int) -> Any:
        called.append(epoch)
        return 1.0

    class Changing:
        def scale(self, epoch: int) -> float:
            return kept(epoch)  # type: ignore[no-any-return]

    values = values_of(lambda o: lr_scheduler.LambdaLR(o, counting))
    values["method"] = lr_scheduler.LambdaLR(values["optimizer"], Changing().scale)
    before = count, [*called], random.getstate(), torch.get_rng_state().tolist()
    with guarded(WatchedStore(), values):
        assert (count, called, random.getstate(), torch.get_rng_state().tolist()) == before
