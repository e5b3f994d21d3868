"""Counts in objects that a loop goes over, and in methods that `super()` calls. Their exact twins log nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.hooks.state.misuse.test_loop_counters import Training, play

pytestmark = pytest.mark.torch


class Decay:
    def __init__(self, training: Training) -> None:
        self.training, self.decays = training, 0

    def on_step(self, step: int, loss: float) -> None:
        self.decays += 1
        for group in self.training.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.decays)


class LoudDecay(Decay):
    def on_step(self, step: int, loss: float) -> None:
        super().on_step(step, loss)
        print(step)


class Show:
    def __init__(self) -> None:
        self.shown = 0

    def on_step(self, step: int, loss: float) -> None:
        self.shown += 1
        print(self.shown, loss)


class DecayByStep:
    def __init__(self, training: Training) -> None:
        self.training = training

    def on_step(self, step: int, loss: float) -> None:
        for group in self.training.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)


class LoudDecayByStep(DecayByStep):
    def on_step(self, step: int, loss: float) -> None:
        super().on_step(step, loss)
        print(step)


class Handler:
    def __init__(self, *held: Any) -> None:
        self.held = held

    def on_step(self, step: int, loss: float) -> None:
        for each in self.held:
            each.on_step(step, loss)


class Stopper:
    def __init__(self, patience: int) -> None:
        self.patience, self.lowest, self.without = patience, math.inf, 0

    def stops(self, loss: float) -> bool:
        if loss < self.lowest:
            self.lowest, self.without = loss, 0
        else:
            self.without += 1
        return self.without > self.patience


class Meter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.summed, self.added = 0.0, 0

    def add(self, value: float) -> None:
        self.summed += value
        self.added += 1


def calls_those_of_a_list(training: Training, guard: Guard) -> None:
    callbacks: list[Any] = [Decay(training), Show(), Show()]
    for step in guard.steps(2):
        loss = training.turn()
        for callback in callbacks:
            callback.on_step(step, loss)


def numbers_those_of_a_list(training: Training, guard: Guard) -> None:
    callbacks: list[Any] = [Decay(training), Show()]
    for step in guard.steps(2):
        loss = training.turn()
        for _, callback in enumerate(callbacks):
            callback.on_step(step, loss)


def calls_those_of_a_dict(training: Training, guard: Guard) -> None:
    callbacks: dict[str, Any] = {"decay": Decay(training), "show": Show()}
    for step in guard.steps(2):
        loss = training.turn()
        for _, callback in callbacks.items():
            callback.on_step(step, loss)


def calls_those_of_an_object(training: Training, guard: Guard) -> None:
    handler = Handler(Decay(training), Show())
    for step in guard.steps(2):
        handler.on_step(step, training.turn())


def asks_each_in_an_expression(training: Training, guard: Guard) -> None:
    stoppers = [Stopper(3), Stopper(100)]
    for _ in guard.steps(2):
        loss = training.turn()
        if any(stopper.stops(loss) for stopper in stoppers):
            training.optimizer.param_groups[0]["lr"] *= 0.5


def scale(optimizer: torch.optim.Optimizer, by: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= by


class Plateau:
    def __init__(self, training: Training) -> None:
        self.training, self.flat = training, 0

    def look(self, loss: float) -> None:
        self.flat += 1
        if self.flat > 2:
            scale(self.training.optimizer, 0.5)


def calls_what_scales(training: Training, guard: Guard) -> None:
    plateau = Plateau(training)
    for _ in guard.steps(2):
        plateau.look(training.turn())


def goes_over_two_lists(training: Training, guard: Guard) -> None:
    plateaus = [Plateau(training), Plateau(training)]
    for _ in guard.steps(2):
        loss = training.turn()
        for plateau, value in zip(plateaus, (loss, loss**2), strict=True):
            plateau.look(value)


def calls_a_method_by_super(training: Training, guard: Guard) -> None:
    loud = LoudDecay(training)
    for step in guard.steps(2):
        loud.on_step(step, training.turn())


class Events:
    def __init__(self) -> None:
        self.handlers: dict[str, list[Any]] = {}

    def on(self, event: str, handler: Any) -> None:
        self.handlers.setdefault(event, []).append(handler)

    def fire(self, event: str, *given: Any) -> None:
        for handler in self.handlers[event]:
            handler(*given)


def registers_a_method(training: Training, guard: Guard) -> None:
    events = Events()
    events.on("step", Decay(training).on_step)
    events.on("step", Show().on_step)
    for step in guard.steps(2):
        events.fire("step", step, training.turn())


def asks_by_name(training: Training, guard: Guard) -> None:
    named_plateaus = {"a": Plateau(training), "b": Plateau(training)}
    for _ in guard.steps(2):
        loss = training.turn()
        for key in named_plateaus:
            named_plateaus[key].look(loss)


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (calls_those_of_a_list, "callbacks[0].decays"),
        (numbers_those_of_a_list, "callbacks[0].decays"),
        (calls_those_of_a_dict, "callbacks['decay'].decays"),
        (calls_those_of_an_object, "handler.held[0].decays"),
        (asks_each_in_an_expression, "stoppers[0].without, stoppers[1].without"),
        (goes_over_two_lists, "plateaus[0].flat, plateaus[1].flat"),
        (calls_what_scales, "plateau.flat"),
        (calls_a_method_by_super, "loud.decays"),
        (registers_a_method, "events.handlers['step'][0].__self__.decays"),
        (asks_by_name, "named_plateaus['a'].flat, named_plateaus['b'].flat"),
    ],
)
def test_count_in_what_a_loop_goes_over_is_named(
    script: Callable[[Training, Guard], None], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    play(script)
    (line,) = named(caplog)
    assert line.startswith((f"{word} (", f"{word}, "))


def shows_in_each(training: Training, guard: Guard) -> None:
    callbacks = [Show(), Show(), Show()]
    for step in guard.steps(2):
        loss = training.turn()
        for callback in callbacks:
            callback.on_step(step, loss)


def decays_by_the_step(training: Training, guard: Guard) -> None:
    callbacks: dict[str, Any] = {"decay": LoudDecayByStep(training), "show": Show()}
    for step in guard.steps(2):
        loss = training.turn()
        for callback in callbacks.values():
            callback.on_step(step, loss)


def resets_each_meter(training: Training, guard: Guard) -> None:
    meters = [Meter(), Meter(), Meter()]
    for _ in guard.steps(2):
        for meter in meters:
            meter.reset()
        for value in (1.0, 2.0):
            for meter in meters:
                meter.add(value)
        (training.loss() * meters[0].summed).backward()
        training.optimizer.step()


def report(training: Training, turns: int) -> None:
    print(turns, training.optimizer.param_groups[0]["lr"])


def calls_what_reports(training: Training, guard: Guard) -> None:
    reported = 0
    for _ in guard.steps(2):
        training.turn()
        reported += 1  # noqa: SIM113 as many scripts count
        if reported > 1:
            report(training, reported)


def goes_over_what_is_registered(training: Training, guard: Guard) -> None:
    models = [training.model, torch.nn.Linear(2, 2)]
    for _ in guard.steps(2):
        for model in models:
            model.train()
        training.turn()


@pytest.mark.parametrize(
    "script",
    [shows_in_each, decays_by_the_step, resets_each_meter, calls_what_reports, goes_over_what_is_registered],
)
def test_objects_that_no_resumed_run_misses_are_not_named(
    script: Callable[[Training, Guard], None], caplog: pytest.LogCaptureFixture
) -> None:
    play(script)
    assert named(caplog) == []


def counts_in_a_dict_of_dicts(training: Training, guard: Guard) -> None:
    by_loss = {"gen": {"calls": 0}, "disc": {"calls": 0}}
    for _ in guard.steps(2):
        training.turn()
        for of_one in by_loss.values():
            of_one["calls"] += 1
            if of_one["calls"] > 1:
                scale(training.optimizer, 0.5)


def counts_in_one_dict(training: Training, guard: Guard) -> None:
    tallies = {"seen": 0, "kept": 0}
    for _ in guard.steps(2):
        training.turn()
        tallies["seen"] += 1
        tallies["kept"] += 1
        if tallies["seen"] + tallies["kept"] > 3:
            scale(training.optimizer, 0.5)


@pytest.mark.parametrize(
    ("script", "word"), [(counts_in_one_dict, "tallies"), (counts_in_a_dict_of_dicts, "by_loss")]
)
def test_remedy_registers_the_dict_that_has_the_counts(
    script: Callable[[Training, Guard], None], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    play(script)
    (line,) = named(caplog)
    assert f"; add {word} to spotguard.register(…)" in line


def test_remedy_keeps_counts_of_one_class_apart(caplog: pytest.LogCaptureFixture) -> None:
    play(asks_each_in_an_expression)
    (line,) = named(caplog)
    assert "progress = {'without': 0, 'stoppers_1_without': 0, 'lowest': " in line


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in said(caplog) if "begins anew in a resumed run" in each]
