"""Numbers that a loop counts and no checkpoint has: named where training depends on them, and their exact twins log nothing."""
# ruff: noqa: SIM113 - as many scripts count

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Training:
    """The values that the loops below train."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ema = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        self.progress: dict[str, Any] = {"updates": 0, "losses": []}
        self.values = dict(vars(self))
        self.global_step = 0

    def loss(self) -> Any:
        self.optimizer.zero_grad()
        return self.model(torch.randn(3, 4)).square().mean()

    def turn(self) -> float:
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


Script = Callable[[Training, Guard], None]


def averages(training: Training, guard: Guard) -> None:
    updates = 0
    for _ in guard.steps(3):
        training.turn()
        updates += 1
        decay = min(0.9, (1 + updates) / (10 + updates))
        for name, each in training.ema.items():
            each.mul_(decay).add_(training.model.get_parameter(name).detach(), alpha=1 - decay)


def schedules(training: Training, guard: Guard) -> None:
    number, optimizer = 0, training.optimizer
    for _ in guard.steps(3):
        lr = 0.1 * 0.9**number
        for group in optimizer.param_groups:
            group["lr"] = lr
        training.turn()
        number = number + 1


def adjust(optimizer: torch.optim.Optimizer, number: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + number)


def schedules_in_a_function(training: Training, guard: Guard) -> None:
    number = 0
    for _ in guard.steps(3):
        adjust(training.optimizer, number)
        training.turn()
        number += 1


def weighs(training: Training, guard: Guard) -> None:
    number = 0
    for _ in guard.steps(3):
        loss = training.loss() * min(1.0, number / 10)
        loss.backward()
        training.optimizer.step()
        number += 1


def ends(training: Training, guard: Guard) -> None:
    number = 0
    while number < 3:
        training.turn()
        number += 1
        guard.step()


def ends_without_gain(training: Training, guard: Guard) -> None:
    best, waited = float("inf"), 0
    for _ in guard.steps(3):
        loss = training.turn()
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited > 5:
            break


def sets_an_attribute(training: Training, guard: Guard) -> None:
    tau = 1.0
    for _ in guard.steps(3):
        training.turn()
        tau *= 0.9
        training.model.tau = tau  # type: ignore[assignment]


def of_an_object(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        training.loss().backward()
        adjust(training.optimizer, training.global_step)
        training.optimizer.step()
        training.global_step += 1


def epochs_around(training: Training, guard: Guard) -> None:
    def epoch() -> None:
        for _ in range(2):
            training.turn()
            guard.step()

    number = 0
    for _ in range(3):
        epoch()
        number += 1
        adjust(training.optimizer, number)


def sums_over_an_epoch(training: Training, guard: Guard) -> None:
    for _ in range(2):
        total = 0.0
        for _ in range(2):
            total += training.turn()
            guard.step()
        adjust(training.optimizer, int(total))


class Trainer:
    """Counts in a method that its loop calls."""

    def __init__(self, training: Training) -> None:
        self.training, self.number = training, 0

    def learn(self) -> None:
        adjust(self.training.optimizer, self.number)
        self.training.turn()
        self.number += 1

    def fit(self, guard: Guard) -> None:
        for _ in range(guard.restore(), 3):
            self.learn()
            guard.step()


def in_a_method(training: Training, guard: Guard) -> None:
    Trainer(training).fit(guard)


@dataclasses.dataclass
class Averaging:
    """Averages weights, at first with a smaller decay."""

    training: Training
    moves: int = 0

    def move(self) -> None:
        self.moves += 1
        for name, each in self.training.ema.items():
            each.lerp_(self.training.model.get_parameter(name).detach(), 1 / (1 + self.moves))


def in_a_class(training: Training, guard: Guard) -> None:
    averaging = Averaging(training)
    for _ in guard.steps(3):
        training.turn()
        averaging.move()


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (in_a_method, "self.number"),
        (in_a_class, "averaging.moves"),
        (sums_over_an_epoch, "total"),
        (averages, "updates"),
        (schedules, "number"),
        (schedules_in_a_function, "number"),
        (weighs, "number"),
        (ends, "number"),
        (ends_without_gain, "waited"),
        (of_an_object, "training.global_step"),
        (sets_an_attribute, "tau"),
        (epochs_around, "number"),
    ],
)
def test_count_that_training_depends_on_is_named(
    script: Script, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    line = next(each for each in said(caplog) if "begins anew in a resumed run" in each)
    assert line.startswith(f"{word} (test_loop_counters.py:")
    assert f"progress = {{'{word.rpartition('.')[2]}': 0}}" in line


# --- exact twins ---


def shows(training: Training, guard: Guard) -> None:
    total, number = 0.0, 0
    for _ in guard.steps(3):
        total += training.turn()
        number += 1
        mean = total / number
        if number % 100 == 0:
            print(mean)


def keeps_it_registered(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        adjust(training.optimizer, training.progress["updates"])
        training.turn()
        training.progress["updates"] += 1


def begins_from_what_is_registered(training: Training, guard: Guard) -> None:
    number = training.progress["updates"]
    for _ in guard.steps(3):
        adjust(training.optimizer, number)
        training.turn()
        number += 1
        training.progress["updates"] = number


def by_the_step(training: Training, guard: Guard) -> None:
    for step in guard.steps(3):
        adjust(training.optimizer, step)
        training.turn()


def gathers(training: Training, guard: Guard) -> None:
    batches = 0
    while len(training.progress["losses"]) < 3:
        training.loss().backward()
        batches += 1
        if batches % 2 == 0:
            training.optimizer.step()
            training.progress["losses"].append(0)
            guard.step()


def counts_in_each_turn(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        part = 0
        for _ in range(2):
            part += 1
            (training.loss() * part).backward()
        training.optimizer.step()


def validates(training: Training, guard: Guard) -> None:
    for step in guard.steps(3):
        training.turn()
        if step == 1:
            total = 0.0
            for _ in range(2):
                total += float(training.loss().detach())
            adjust(training.optimizer, int(total))


def validates_behind_an_epoch(training: Training, guard: Guard) -> None:
    for _ in range(2):
        for _ in range(2):
            training.turn()
            guard.step()
        worse = 0
        for _ in range(2):
            worse += 1
        if worse > 5:
            break


@dataclasses.dataclass
class Meter:
    """Counts what it shows, and what each turn begins anew."""

    shown: int = 0
    parts: int = 0

    def turn(self, training: Training) -> None:
        self.shown += 1
        self.parts = 0
        for _ in range(2):
            self.parts += 1
            (training.loss() * self.parts).backward()
        training.optimizer.step()
        if self.shown % 100 == 0:
            print(self.shown)


def shows_in_a_class(training: Training, guard: Guard) -> None:
    meter = Meter()
    for _ in guard.steps(3):
        meter.turn(training)


@dataclasses.dataclass
class State:
    """The state that a script keeps of its training."""

    step: int = 0


def keeps_it_in_an_object(training: Training, guard: Guard) -> None:
    state = State()
    training.progress["state"] = state
    while state.step < 3:
        training.turn()
        state.step += 1
        guard.step()


def gathers_and_begins_anew(training: Training, guard: Guard) -> None:
    step, batches = guard.restore(), 0
    while step < 3:
        training.loss().backward()
        batches += 1
        if batches == 2:
            training.optimizer.step()
            batches = 0
            for each in training.ema.values():
                each.mul_(0.9)
            step += 1
            guard.step()


def report(optimizer: torch.optim.Optimizer, seen: int) -> None:
    print(f"{seen} samples, lr {optimizer.param_groups[0]['lr']}")


def shows_in_a_function(training: Training, guard: Guard) -> None:
    seen = 0
    for _ in guard.steps(3):
        training.turn()
        seen += 3
        report(training.optimizer, seen)


def leaves_out_what_is_done(training: Training, guard: Guard) -> None:
    number, done = 0, guard.restore()
    for _ in range(2):
        for _ in range(2):
            number += 1
            if number <= done:
                continue
            adjust(training.optimizer, number)
            training.turn()
            guard.step()


def limits_its_time(training: Training, guard: Guard) -> None:
    seconds = 0.0
    for _ in guard.steps(3):
        began = time.monotonic()
        training.turn()
        seconds += time.monotonic() - began
        if seconds > 3600:
            break


def adds_what_is_done(training: Training, guard: Guard) -> None:
    number = 0
    number += guard.restore()
    for _ in guard.steps(3):
        adjust(training.optimizer, number)
        training.turn()
        number += 1


def reports(training: Training, guard: Guard) -> None:
    number, history = 0, []
    for _ in guard.steps(3):
        loss = training.turn()
        number += 1
        history.append((number, loss))
        if number % 2 == 0:
            name = f"checkpoint-{number}"
            print(name)


@pytest.mark.parametrize(
    "script",
    [
        shows,
        keeps_it_registered,
        begins_from_what_is_registered,
        by_the_step,
        gathers,
        counts_in_each_turn,
        validates,
        keeps_it_in_an_object,
        shows_in_a_class,
        gathers_and_begins_anew,
        shows_in_a_function,
        leaves_out_what_is_done,
        limits_its_time,
        adds_what_is_done,
        validates_behind_an_epoch,
        reports,
    ],
)
def test_count_that_no_resumed_run_misses_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    assert [each for each in said(caplog) if "begins anew in a resumed run" in each] == []


# --- loops that count from 0 again ---


def from_0(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(3):
        training.turn()
        guard.step()


def from_0_in_epochs(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(2):
        for _ in range(2):
            training.turn()
            guard.step()


def from_what_is_done(training: Training, guard: Guard) -> None:
    for _ in range(guard.restore(), 5):
        training.turn()
        guard.step()


def skips(training: Training, guard: Guard) -> None:
    done = guard.restore()
    for step in range(5):
        if step < done:
            continue
        training.turn()
        guard.step()


def steps_of_each_phase(training: Training, guard: Guard) -> None:
    guard.restore()
    for phase in range(2):
        for _ in guard.steps(3 * (phase + 1)):
            training.turn()


def the_rest(training: Training, guard: Guard) -> None:
    done = guard.restore()
    for _ in range(5 - done):
        training.turn()
        guard.step()


def ends_by_a_step(training: Training, guard: Guard) -> None:
    step = guard.restore()
    for _ in range(1000):
        training.turn()
        step += 1
        guard.step()
        if step >= 3:
            break


def ends_by_what_is_registered(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(1000):
        training.turn()
        training.progress["updates"] += 1
        guard.step()
        if training.progress["updates"] >= 3:
            break


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (from_0, True),
        (from_0_in_epochs, True),
        (from_what_is_done, False),
        (skips, False),
        (steps_of_each_phase, False),
        (the_rest, False),
        (ends_by_a_step, False),
        (ends_by_what_is_registered, False),
    ],
)
def test_loop_that_counts_from_0_behind_a_restore_is_named(
    script: Script, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()

    def lines() -> list[str]:
        training = Training()
        caplog.clear()
        with guarded(store, training.values) as guard:
            script(training, guard)
            guard.save()
        return [each for each in said(caplog) if "counts from 0 again" in each]

    assert lines() == []
    resumed = lines()
    assert len(resumed) == named
    if named:
        assert "write `for step in range(guard.restore(), total)`" in resumed[0]
