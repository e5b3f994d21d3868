"""Numbers that a loop counts and no checkpoint has: named where training depends on them, and their exact twins log nothing."""
# ruff: noqa: SIM113 - as many scripts count

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
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
        self.second = torch.optim.SGD(self.model.parameters(), lr=0.2)
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


def play(script: Script) -> None:
    """A run of a script, from its first step on."""
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)


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


def in_a_dict(training: Training, guard: Guard) -> None:
    state = {"number": 0}
    for _ in guard.steps(3):
        adjust(training.optimizer, state["number"])
        training.turn()
        state["number"] += 1


def in_a_dict_of_zeros(training: Training, guard: Guard) -> None:
    counts: dict[str, int] = collections.defaultdict(int)
    for _ in guard.steps(3):
        adjust(training.optimizer, counts["number"])
        training.turn()
        counts["number"] += 1


OPTIONS = argparse.Namespace(rate=0.1)


def begins_with_an_option(training: Training, guard: Guard) -> None:
    rate = OPTIONS.rate / 2
    for _ in guard.steps(3):
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        training.turn()
        rate *= 0.9


class Stopper:
    """Ends a training without gain, as users write it."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited, self.stop = patience, float("inf"), 0, False

    def __call__(self, loss: float) -> bool:
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
            if self.waited > self.patience:
                self.stop = True
        return self.waited > self.patience

    @property
    def ended(self) -> bool:
        return self.waited > self.patience


def weighs_each_sample(training: Training, guard: Guard) -> None:
    weights: dict[int, float] = {}
    for step in guard.steps(3):
        sample = step % 2
        weight = weights.get(sample, 1.0)
        (training.loss() * weight).backward()
        training.optimizer.step()
        weights[sample] = 0.9 * weight


def learns_a_table(training: Training, guard: Guard) -> None:
    table: dict[int, float] = collections.defaultdict(float)
    for step in guard.steps(3):
        loss = training.loss() * (1 + table[step % 2])
        loss.backward()
        training.optimizer.step()
        table[step % 2] += 0.1


def learns_a_table_of_rows(training: Training, guard: Guard) -> None:
    actions = {state: [1.0, 1.0] for state in range(2)}
    for step in guard.steps(3):
        (training.loss() * max(actions[step % 2])).backward()
        training.optimizer.step()
        actions[step % 2][0] += 0.1


def remembers_losses_of_a_sample(training: Training, guard: Guard) -> None:
    history: dict[int, list[float]] = {0: [], 1: []}
    for step in guard.steps(3):
        (training.loss() * (1 + len(history[step % 2]))).backward()
        training.optimizer.step()
        history[step % 2].append(1.0)


def weighs_by_frequency(training: Training, guard: Guard) -> None:
    classes: collections.Counter[int] = collections.Counter()
    for step in guard.steps(3):
        classes.update([step % 2])
        (training.loss() / classes[step % 2]).backward()
        training.optimizer.step()


class Ring:
    """Items in a dict, each at its place."""

    def __init__(self) -> None:
        self.items: dict[int, torch.Tensor] = {}
        self.place = 0

    def add(self, item: torch.Tensor) -> None:
        self.items[self.place % 4] = item
        self.place += 1


def replays_from_a_ring(training: Training, guard: Guard) -> None:
    ring = Ring()
    for _ in guard.steps(3):
        ring.add(torch.randn(4))
        training.optimizer.zero_grad()
        training.model(torch.stack(list(ring.items.values()))).square().mean().backward()
        training.optimizer.step()


class Slots:
    """A count in a slot."""

    __slots__ = ("turns",)

    def __init__(self) -> None:
        self.turns = 0


def counts_in_a_slot(training: Training, guard: Guard) -> None:
    slots = Slots()
    for _ in guard.steps(3):
        slots.turns += 1
        adjust(training.optimizer, slots.turns)
        training.turn()


def stops_by_what_a_call_returns(training: Training, guard: Guard) -> None:
    stopper = Stopper(5)
    for _ in guard.steps(3):
        if stopper(training.turn()):
            break


def stops_by_an_attribute(training: Training, guard: Guard) -> None:
    stopper = Stopper(5)
    for _ in range(guard.restore(), 3):
        stopper(training.turn())
        guard.step()
        if stopper.stop:
            break


def stops_by_a_property(training: Training, guard: Guard) -> None:
    stopper = Stopper(5)
    for _ in guard.steps(3):
        stopper(training.turn())
        if stopper.ended:
            break


def steps_another_optimizer(training: Training, guard: Guard) -> None:
    number, second = 0, training.second
    for _ in guard.steps(3):
        training.turn()
        number += 1
        if number % 2 == 0:
            training.loss().backward()
            second.step()


class Warming:
    """A count behind a method with the name of a dict's."""

    def __init__(self) -> None:
        self.moves = 0

    def update(self) -> None:
        self.moves += 1


def in_a_method_named_update(training: Training, guard: Guard) -> None:
    warming = Warming()
    for _ in guard.steps(3):
        warming.update()
        adjust(training.optimizer, warming.moves)
        training.turn()


turns = 0


def turn(training: Training) -> None:
    global turns
    training.turn()
    turns += 1


def in_a_global_name(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        adjust(training.optimizer, turns)
        turn(training)


def replays(training: Training, guard: Guard) -> None:
    seen: collections.deque[torch.Tensor] = collections.deque(maxlen=8)
    for _ in guard.steps(3):
        seen.append(torch.randn(4))
        training.optimizer.zero_grad()
        training.model(torch.stack(random.choices(seen, k=2))).square().mean().backward()
        training.optimizer.step()


def shuffles_in_place(training: Training, guard: Guard) -> None:
    data, order = torch.randn(6, 4), list(range(6))
    for _ in guard.steps(3):
        random.shuffle(order)
        training.optimizer.zero_grad()
        loss = training.model(data[order[:2]]).square().mean()
        loss.backward()
        training.optimizer.step()


class Pool:
    """Older images, among which a discriminator's are drawn."""

    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []

    def query(self, image: torch.Tensor) -> torch.Tensor:
        self.images.append(image)
        return random.choice(self.images)


def draws_from_a_pool(training: Training, guard: Guard) -> None:
    pool = Pool()
    for _ in guard.steps(3):
        image = pool.query(torch.randn(3, 4))
        training.optimizer.zero_grad()
        training.model(image).square().mean().backward()
        training.optimizer.step()


def carries_hidden_states(training: Training, guard: Guard) -> None:
    hidden = torch.zeros(3, 2)
    for _ in guard.steps(3):
        training.optimizer.zero_grad()
        hidden = (training.model(torch.randn(3, 4)) + hidden).detach()
        training.model(hidden @ torch.ones(2, 4)).square().mean().backward()
        training.optimizer.step()


def normalizes(training: Training, guard: Guard) -> None:
    mean = torch.zeros(4)
    for _ in guard.steps(3):
        data = torch.randn(3, 4)
        mean.mul_(0.9).add_(data.mean(0), alpha=0.1)
        training.optimizer.zero_grad()
        training.model(data - mean).square().mean().backward()
        training.optimizer.step()


def fills_a_ring(training: Training, guard: Guard) -> None:
    ring = np.zeros((4, 4), dtype=np.float32)
    for step in guard.steps(3):
        ring[step % 4] = np.random.rand(4)
        train(training, torch.from_numpy(ring))


def train(training: Training, data: torch.Tensor, weight: float = 1.0) -> float:
    loss = training.model(data).square().mean() * weight
    loss.backward()
    training.optimizer.step()
    return float(loss.detach())


def balances(training: Training, guard: Guard) -> None:
    beta = 1.0
    for _ in guard.steps(3):
        loss = train(training, torch.randn(3, 4), beta)
        if loss > 0:
            beta *= 2


def batches(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield from rows


def takes_from_a_generator(training: Training, guard: Guard) -> None:
    rows = torch.randn(5, 4)
    source = batches(rows)
    for _ in guard.steps(3):
        train(training, next(source))


def takes_in_a_circle(training: Training, guard: Guard) -> None:
    rows = torch.randn(5, 4)
    source = itertools.cycle(rows)
    for _ in range(guard.restore(), 3):
        train(training, next(source))
        guard.step()


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (carries_hidden_states, "hidden"),
        (normalizes, "mean"),
        (fills_a_ring, "ring"),
        (balances, "beta"),
        (takes_from_a_generator, "source"),
        (takes_in_a_circle, "source"),
        (replays, "seen"),
        (shuffles_in_place, "order"),
        (draws_from_a_pool, "pool.images"),
        (in_a_dict, "state['number']"),
        (in_a_dict_of_zeros, "counts['number']"),
        (begins_with_an_option, "rate"),
        (stops_by_what_a_call_returns, "stopper.waited, stopper.best"),
        (stops_by_an_attribute, "stopper.waited, stopper.best"),
        (stops_by_a_property, "stopper.waited, stopper.best"),
        (steps_another_optimizer, "number"),
        (in_a_method_named_update, "warming.moves"),
        (in_a_global_name, "turns"),
        (in_a_method, "self.number"),
        (in_a_class, "averaging.moves"),
        (sums_over_an_epoch, "total"),
        (averages, "updates"),
        (schedules, "number"),
        (schedules_in_a_function, "number"),
        (weighs, "number"),
        (ends, "number"),
        (ends_without_gain, "waited, best"),
        (counts_in_a_slot, "slots.turns"),
        (weighs_each_sample, "weights"),
        (learns_a_table, "table"),
        (learns_a_table_of_rows, "actions"),
        (remembers_losses_of_a_sample, "history"),
        (weighs_by_frequency, "classes"),
        (replays_from_a_ring, "ring.items, ring.place"),
        (of_an_object, "training.global_step"),
        (sets_an_attribute, "tau"),
        (epochs_around, "number"),
    ],
)
def test_count_that_training_depends_on_is_named(
    script: Script, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    play(script)
    line = next(each for each in said(caplog) if "begins anew in a resumed run" in each)
    assert line.startswith(f"{word} (test_loop_counters.py:")
    names = [each.rpartition(".")[2] for each in word.split(", ")]
    remedies = (
        f"add {word.partition('[')[0]} to spotguard.register(…)",
        f"progress={{'{names[0]}': {word}}} [SG425]",
        "begin it at the step that guard.restore() returns",
        "register the dict of its attributes, as in ring=vars(ring) [SG425]",
    )
    kept = "in a registered dict, as in progress = {" in line and all(f"'{each}': " in line for each in names)
    assert kept or any(each in line for each in remedies)


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


def takes_a_dict_up_again(training: Training, guard: Guard) -> None:
    kept = {"number": 0}
    kept.update(number=training.progress["updates"])
    for _ in guard.steps(3):
        adjust(training.optimizer, kept["number"])
        training.turn()
        kept["number"] += 1
        training.progress["updates"] = kept["number"]


def begins_with_a_restored_option(training: Training, guard: Guard) -> None:
    options = argparse.Namespace()
    options.done = guard.restore()
    number = options.done
    for _ in range(number, 3):
        adjust(training.optimizer, number)
        training.turn()
        number += 1
        guard.step()


class Average:
    """The mean of what it saw, as scripts show it."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.total += value
        self.count += 1

    def mean(self) -> float:
        if not self.count:
            return 0.0
        return self.total / self.count


def shows_an_average(training: Training, guard: Guard) -> None:
    average = Average()
    for _ in guard.steps(3):
        average.update(training.turn())
        print(average.mean())


class Episode:
    """An environment whose clock each episode begins anew."""

    def __init__(self) -> None:
        self.clock = 0

    def reset(self) -> float:
        self.clock = 0
        return 0.0

    def act(self) -> bool:
        self.clock += 1
        return self.clock >= 2


def draws_from_a_generator(training: Training, guard: Guard) -> None:
    def drawn() -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(3, 4)

    source = drawn()
    for _ in guard.steps(3):
        train(training, next(source))


def takes_from_where_it_was(training: Training, guard: Guard) -> None:
    rows, done = torch.randn(5, 4), guard.restore()
    source = itertools.islice(itertools.cycle(rows), done, None)
    for _ in range(done, 3):
        train(training, next(source))
        guard.step()


def changes_its_batch(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        data = torch.randn(3, 4)
        data = data * 2
        data[0] = 0
        train(training, data)


def shows_a_tensor(training: Training, guard: Guard) -> None:
    total = torch.zeros(())
    for _ in guard.steps(3):
        total = total + train(training, torch.randn(3, 4))
        print(float(total))


def fills_a_slice_anew(training: Training, guard: Guard) -> None:
    kept: list[torch.Tensor] = []
    for _ in range(guard.restore(), 3):
        kept.append(torch.randn(4))
        train(training, torch.stack(kept))
        guard.step()
        del kept[:]


def sets_it_in_each_branch(training: Training, guard: Guard) -> None:
    for step in guard.steps(3):
        if step < 1:
            rate = 0.1
        elif step < 2:
            rate = 0.2
        else:
            rate = 0.3
        rate *= 0.5
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        training.turn()


def refills_a_buffer(training: Training, guard: Guard) -> None:
    noise, mask, rows = torch.empty(3, 4), torch.zeros(3, 4), torch.zeros(3, 4)
    for step in guard.steps(3):
        noise.normal_().mul_(0.1)
        mask.zero_()
        mask[step % 3] = 1
        for number in range(3):
            rows[number] = torch.randn(4)
        train(training, noise * mask + rows)


def moves_it_to_the_device(training: Training, guard: Guard) -> None:
    weights = torch.ones(4)
    for _ in guard.steps(3):
        data = torch.randn(3, 4)
        weights = weights.to(data.device)
        train(training, data * weights)


def counts_micro_batches(training: Training, guard: Guard) -> None:
    batches, step = 0, guard.restore()
    while True:
        training.loss().backward()
        batches += 1
        if batches % 2 == 0:
            for group in training.optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            training.optimizer.step()
            step += 1
            guard.step()
            if step >= 3:
                break


class Averaged:
    """Returns what is shown beside what is trained."""

    def __init__(self) -> None:
        self.mean = 0.0

    def turn(self, training: Training) -> tuple[Any, float]:
        loss = training.loss()
        self.mean = 0.9 * self.mean + 0.1 * float(loss.detach())
        return loss, self.mean


def shows_what_is_returned(training: Training, guard: Guard) -> None:
    averaged = Averaged()
    for _ in guard.steps(3):
        loss, shown = averaged.turn(training)
        loss.backward()
        training.optimizer.step()
        print(shown)


def shows_under_another_values_name(training: Training, guard: Guard) -> None:
    number, running = 0, 0.0
    for _ in guard.steps(3):
        loss = training.loss()
        loss.backward()
        training.optimizer.step()
        number += 1
        running += float(loss.detach())
        if number % 2 == 0:
            loss = running / number
            print(loss)


def winds_its_iterator(training: Training, guard: Guard) -> None:
    rows, done = torch.randn(5, 4), guard.restore()
    source = itertools.cycle(rows)
    next(itertools.islice(source, done, done), None)
    for _ in range(done, 3):
        train(training, next(source))
        guard.step()


def gathers_a_batch(training: Training, guard: Guard) -> None:
    batch: list[torch.Tensor] = []
    done = guard.restore()
    while done < 3:
        batch.append(torch.randn(4))
        if len(batch) == 2:
            training.optimizer.zero_grad()
            training.model(torch.stack(batch)).square().mean().backward()
            training.optimizer.step()
            done += 1
            guard.step()
            batch.clear()


def shows_its_losses(training: Training, guard: Guard) -> None:
    losses: list[float] = []
    for step in guard.steps(3):
        losses.append(training.turn())
        if step % 2 == 0:
            print(sum(losses) / len(losses))


def fills_a_cache(training: Training, guard: Guard) -> None:
    cache: dict[int, torch.Tensor] = {}
    for step in guard.steps(3):
        key = step % 2
        if key not in cache:
            cache[key] = torch.full((4,), float(key))
        training.optimizer.zero_grad()
        training.model(cache[key]).square().mean().backward()
        training.optimizer.step()


class Encodings:
    """A cache as a class has it, and three other forms of one."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}
        self.second: dict[int, float] = {}
        self.third: dict[int, float] = {}
        self.fourth: dict[int, float] = {}

    def of(self, key: int) -> float:
        if key in self.known:
            return self.known[key]
        value = float(key)
        self.known[key] = value
        return value

    def others(self, key: int) -> float:
        try:
            first = self.second[key]
        except KeyError:
            first = self.second[key] = 1.0
        second = self.third.get(key)
        if second is None:
            second = 1.0
            self.third[key] = second
        if (third := self.fourth.get(key)) is None:
            third = self.fourth[key] = 1.0
        return first * second * third


def fills_caches_of_every_form(training: Training, guard: Guard) -> None:
    encodings = Encodings()
    for step in guard.steps(3):
        adjust(training.optimizer, int(encodings.of(step % 2) * encodings.others(step % 2)))
        training.turn()


def moves_its_batch(training: Training, guard: Guard) -> None:
    given: dict[str, torch.Tensor] = {}
    for _ in guard.steps(3):
        given["x"] = torch.randn(3, 4)
        given = {name: each.to("cpu") for name, each in given.items()}
        training.optimizer.zero_grad()
        training.model(given["x"]).square().mean().backward()
        training.optimizer.step()


def gathers_a_dict(training: Training, guard: Guard) -> None:
    shown: dict[int, float] = {}
    for step in guard.steps(3):
        given: dict[int, float] = {}
        given[step] = 0.5
        shown[step] = training.turn()
        adjust(training.optimizer, int(given[step]))
    print(shown)


def keeps_a_registered_list(training: Training, guard: Guard) -> None:
    kept = training.progress["losses"]
    for _ in guard.steps(3):
        kept.append(training.turn())
        adjust(training.optimizer, len(kept))


def fills_a_list_before_the_loop(training: Training, guard: Guard) -> None:
    rows: list[torch.Tensor] = []
    for _ in range(4):
        rows.append(torch.randn(4))
    for _ in guard.steps(3):
        rows.append(rows.pop())
        training.optimizer.zero_grad()
        training.model(torch.stack(rows)).square().mean().backward()
        training.optimizer.step()


def plays_an_episode_a_turn(training: Training, guard: Guard) -> None:
    episode = Episode()
    for _ in range(guard.restore(), 3):
        episode.reset()
        done = False
        while not done:
            training.turn()
            done = episode.act()
        guard.step()


def makes_an_average_a_turn(training: Training, guard: Guard) -> None:
    for _ in range(guard.restore(), 3):
        average = Average()
        for _ in range(2):
            average.update(training.turn())
        adjust(training.optimizer, int(average.count))
        guard.step()


def begins_a_dict_anew(training: Training, guard: Guard) -> None:
    sums: dict[str, float] = {"loss": 0.0}
    for _ in range(guard.restore(), 3):
        for name in sums:
            sums[name] = 0.0
        sums["loss"] += training.turn()
        adjust(training.optimizer, int(sums["loss"]))
        guard.step()


def begins_anew_behind_the_boundary(training: Training, guard: Guard) -> None:
    total = 0.0
    for _ in range(guard.restore(), 3):
        total += training.turn()
        adjust(training.optimizer, int(total))
        guard.step()
        total = 0.0


def is_given_what_is_done(training: Training, guard: Guard, number: int = -1) -> None:
    if number < 0:
        number = 0
    for _ in guard.steps(3):
        adjust(training.optimizer, number)
        training.turn()
        number += 1


def makes_its_state_of_what_is_done(training: Training, guard: Guard) -> None:
    state = State(guard.restore())
    while state.step < 3:
        training.turn()
        state.step += 1
        guard.step()


def unpacks_what_is_registered(training: Training, guard: Guard) -> None:
    [number, _] = training.progress["updates"], 0
    state = {"number": 0} | {"number": number}
    for _ in guard.steps(3):
        adjust(training.optimizer, number + state["number"])
        training.turn()
        number += 1
        state["number"] += 1
        training.progress["updates"] = number


def counts_again_what_is_done(training: Training, guard: Guard) -> None:
    number, done = 0, guard.restore()
    for step in range(3):
        number += 1
        if step < done:
            continue
        adjust(training.optimizer, number)
        training.turn()
        guard.step()


def limits_the_seconds_of_steps(training: Training, guard: Guard) -> None:
    seconds = 0.0
    for _ in guard.steps(3):
        began = time.monotonic()
        training.turn()
        took = time.monotonic() - began
        seconds += took
        if seconds > 3600:
            break


def stops_by_a_registered_object(training: Training, guard: Guard) -> None:
    stopper = Stopper(5)
    training.progress["stopper"] = vars(stopper)
    for _ in guard.steps(3):
        if stopper(training.turn()):
            break


@pytest.mark.parametrize(
    "script",
    [
        takes_a_dict_up_again,
        begins_with_a_restored_option,
        shows_an_average,
        stops_by_a_registered_object,
        sets_it_in_each_branch,
        refills_a_buffer,
        moves_it_to_the_device,
        counts_micro_batches,
        shows_what_is_returned,
        shows_under_another_values_name,
        winds_its_iterator,
        draws_from_a_generator,
        takes_from_where_it_was,
        changes_its_batch,
        shows_a_tensor,
        fills_a_slice_anew,
        gathers_a_batch,
        shows_its_losses,
        keeps_a_registered_list,
        fills_a_cache,
        gathers_a_dict,
        fills_caches_of_every_form,
        moves_its_batch,
        fills_a_list_before_the_loop,
        plays_an_episode_a_turn,
        makes_an_average_a_turn,
        begins_a_dict_anew,
        begins_anew_behind_the_boundary,
        is_given_what_is_done,
        makes_its_state_of_what_is_done,
        unpacks_what_is_registered,
        counts_again_what_is_done,
        limits_the_seconds_of_steps,
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
    play(script)
    assert [each for each in said(caplog) if "begins anew in a resumed run" in each] == []
