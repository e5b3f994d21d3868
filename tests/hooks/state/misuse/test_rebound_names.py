"""A script's name that stood for a registered object and stands for another one: each kind is named in one line, its twins log nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, StepLR

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

Weights = dict[str, torch.Tensor]


class Training:
    """A model and its optimizer, and one turn of their training."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.values = {"model": self.model, "optimizer": self.optimizer}

    def turn(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 4)).square().mean().backward()
        self.optimizer.step()

    def weights(self) -> Weights:
        return {name: each.detach().clone() for name, each in self.model.named_parameters()}

    def average(self, ema: Weights) -> Weights:
        return {name: 0.9 * each + 0.1 * self.weights()[name] for name, each in ema.items()}


def register(training: Training, **values: Any) -> Any:
    return guarded(WatchedStore(), {**training.values, **values})


# --- said ---


def a_dict(training: Training) -> None:
    ema = training.weights()
    with register(training, ema=ema) as guard:
        guard.restore()
        for _ in guard.steps(3):
            training.turn()
            ema = training.average(ema)


def a_tensor(training: Training) -> None:
    ema = training.model.weight.detach().clone()
    with register(training, ema=ema) as guard:
        for _ in range(guard.restore(), 3):
            training.turn()
            ema = 0.9 * ema + 0.1 * training.model.weight.detach()
            guard.step()


def a_dict_that_some_turns_replace(training: Training) -> None:
    best: dict[str, Any] = {}
    with register(training, best=best) as guard:
        guard.restore()
        for number in guard.steps(9):
            training.turn()
            if number % 3 == 2:
                best = {"step": number}
    assert best


def a_scheduler(training: Training) -> None:
    scheduler: Any = LinearLR(training.optimizer)
    with register(training, scheduler=scheduler) as guard:
        guard.restore()
        for number in guard.steps(9):
            training.turn()
            if number == 3:
                scheduler = StepLR(training.optimizer, 3)
            scheduler.step()


def a_module(training: Training) -> None:
    target = copy.deepcopy(training.model)
    with register(training, target=target) as guard:
        guard.restore()
        for _ in guard.steps(9):
            training.turn()
            target = copy.deepcopy(training.model)
    assert target is not training.model


def a_dict_around_the_loop(training: Training) -> None:
    ema = training.weights()

    def epoch(guard: Guard) -> None:
        for _ in range(2):
            training.turn()
            guard.step()

    with register(training, ema=ema) as guard:
        guard.restore()
        for _ in range(3):
            epoch(guard)
            ema = training.average(ema)


def an_argument(training: Training) -> None:
    def train(guard: Guard, ema: Weights) -> None:
        for _ in guard.steps(3):
            training.turn()
            ema = training.average(ema)

    kept = training.weights()
    with register(training, ema=kept) as guard:
        guard.restore()
        train(guard, kept)


class Trainer:
    """Keeps an average in an attribute."""

    def __init__(self, training: Training) -> None:
        self.training, self.shadow = training, training.weights()

    def run(self) -> None:
        with register(self.training, ema=self.shadow) as guard:
            guard.restore()
            for _ in guard.steps(3):
                self.update()

    def update(self) -> None:
        self.training.turn()
        self.shadow = self.training.average(self.shadow)


def an_attribute(training: Training) -> None:
    Trainer(training).run()


SHARED: Weights = {}


def a_global_name(training: Training) -> None:
    global SHARED
    SHARED = training.weights()
    with register(training, ema=SHARED) as guard:
        guard.restore()
        for _ in guard.steps(3):
            training.turn()
            SHARED = training.average(SHARED)


@pytest.mark.parametrize(
    ("script", "word", "name", "remedy"),
    [
        (a_dict, "ema", "'ema'", "ema.update(…)"),
        (a_tensor, "ema", "'ema'", "ema.copy_(…)"),
        (a_dict_that_some_turns_replace, "best", "'best'", "best.update(…)"),
        (a_scheduler, "scheduler", "'scheduler'", "register each of them"),
        (a_module, "target", "'target'", "target.load_state_dict(…)"),
        (a_dict_around_the_loop, "ema", "'ema'", "ema.update(…)"),
        (an_argument, "ema", "'ema'", "ema.update(…)"),
        (an_attribute, "self.shadow", "'ema'", "self.shadow.update(…)"),
        (a_global_name, "SHARED", "'ema'", "SHARED.update(…)"),
    ],
)
def test_name_that_stands_for_another_object_is_said_once(
    script: Callable[[Training], None],
    word: str,
    name: str,
    remedy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script(Training())
    (line,) = said(caplog)
    assert line.startswith(f"the script's {word} is no longer the registered ")
    assert f" {name} but another one" in line
    assert remedy in line
    assert line.endswith("[SG425]")


# --- exact twins ---


def updated_in_place(training: Training) -> None:
    ema = training.weights()
    with register(training, ema=ema) as guard:
        guard.restore()
        for _ in guard.steps(5):
            training.turn()
            ema.update(training.average(ema))


def stored_where_it_is_registered(training: Training) -> None:
    average = training.model.weight.detach().clone()
    notes = {"average": average}
    with register(training, notes=notes) as guard:
        guard.restore()
        average = notes["average"]
        for _ in guard.steps(5):
            training.turn()
            average = notes["average"] = 0.9 * average + 0.1 * training.model.weight.detach()


def a_name_of_a_loop(training: Training) -> None:
    nets = [nn.Linear(2, 2) for _ in range(2)]
    others = [nn.Linear(2, 2) for _ in range(2)]
    for net in nets:
        net.train()
    with register(training, first=nets[0], second=nets[1]) as guard:
        guard.restore()
        for _ in guard.steps(5):
            training.turn()
            for net in others:
                net.eval()


def a_scheduler_around_it(training: Training) -> None:
    scheduler: Any = StepLR(training.optimizer, 2)
    with register(training, scheduler=scheduler) as guard:
        guard.restore()
        scheduler = ChainedScheduler([scheduler])
        for _ in guard.steps(5):
            training.turn()
            scheduler.step()


def a_local_name_of_a_function(training: Training) -> None:
    def epoch(guard: Guard) -> dict[str, float]:
        for _ in range(2):
            training.turn()
            metrics = {"loss": float(torch.rand(()))}
            guard.step()
        return metrics

    metrics = {"best": 1.0}
    with register(training, metrics=metrics) as guard:
        guard.restore()
        for _ in range(3):
            assert epoch(guard)


def derived_before_the_loop(training: Training) -> None:
    weights = torch.rand(2)
    with register(training, weights=weights) as guard:
        guard.restore()
        weights = weights / weights.sum()
        for _ in guard.steps(5):
            training.turn()
    assert weights.sum()


def a_name_of_an_item(training: Training) -> None:
    noise = torch.randn(3)
    samples = {"noise": noise}
    with register(training, samples=samples) as guard:
        guard.restore()
        for _ in guard.steps(5):
            training.turn()
            noise = torch.randn(2)
    assert noise.numel()


def a_view(training: Training) -> None:
    ema = training.model.weight.detach().clone()
    with register(training, ema=ema) as guard:
        guard.restore()
        ema = ema.view(-1)
        for _ in guard.steps(5):
            training.turn()
            ema.mul_(0.9).add_(training.model.weight.detach().view(-1), alpha=0.1)


def a_name_for_what_is_only_read(training: Training) -> None:
    """The registered dict has another name elsewhere, and changes."""
    notes: dict[str, list[int]] = {"steps": []}
    note = notes["steps"].append
    with register(training, notes=notes) as guard:
        guard.restore()
        for number in guard.steps(5):
            training.turn()
            note(number)
            notes = {"steps": []}
    assert notes


@pytest.mark.parametrize(
    "script",
    [
        updated_in_place,
        stored_where_it_is_registered,
        a_name_of_a_loop,
        a_scheduler_around_it,
        a_view,
        a_local_name_of_a_function,
        derived_before_the_loop,
        a_name_of_an_item,
        a_name_for_what_is_only_read,
    ],
)
def test_name_that_is_used_for_something_else_logs_nothing(
    script: Callable[[Training], None], caplog: pytest.LogCaptureFixture
) -> None:
    script(Training())
    assert said(caplog) == []


def test_look_at_names_keeps_nothing_alive() -> None:
    training = Training()
    notes = {"average": training.model.weight.detach().clone()}
    refs = []
    with register(training, notes=notes) as guard:
        guard.restore()
        for _ in guard.steps(3):
            training.turn()
            batch = torch.randn(3, 4)
            refs += [weakref.ref(batch), weakref.ref(notes["average"])]
            notes["average"] = notes["average"] + 1
            del batch
    gc.collect()
    assert [each for each in refs if each() is not None] == []


def test_dict_of_locals_stays_as_it_was() -> None:
    """Before Python 3.13 that is the dict that the frame keeps."""

    def train(clip: float = 1.0, steps: int = 3) -> None:
        options = locals()
        training = Training()
        with register(training) as guard:
            guard.restore()
            for _ in guard.steps(options["steps"]):
                training.turn()
        assert options["clip"] == 1.0

    train()
