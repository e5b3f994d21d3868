"""Values that a turn reads as an earlier one left them, wherever they are kept: named where training depends on them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.hooks.state.misuse.scripts import Script, Training, lines

pytestmark = pytest.mark.torch


def compares_with_the_turn_before(training: Training, guard: Guard) -> None:
    previous = torch.zeros(3, 2)
    for _ in guard.steps(3):
        output = training.output()
        training.learn(output.square().mean() + (output - previous).square().mean())
        previous = output.detach()


def moves_the_rate_by_the_last_loss(training: Training, guard: Guard) -> None:
    last = float("inf")
    for _ in guard.steps(3):
        loss = training.learn(training.output().square().mean())
        for group in training.optimizer.param_groups:
            group["lr"] *= 1.05 if loss < last else 0.7
        last = loss


def goes_on_under_another_name(training: Training, guard: Guard) -> None:
    strength = 1.0
    for _ in guard.steps(3):
        weaker = strength * 0.9
        training.learn(training.output().square().mean() * weaker)
        strength = weaker


def unpacks_what_it_carries(training: Training, guard: Guard) -> None:
    carry = (torch.zeros(3, 2), torch.zeros(()))
    for _ in guard.steps(3):
        state, scale = carry
        state = training.output() + state
        training.learn(state.square().mean() * (1 + scale))
        carry = (state.detach(), scale + 0.1)


def makes_a_mask_now_and_then(training: Training, guard: Guard) -> None:
    mask = torch.ones(2)
    for step in guard.steps(3):
        if step % 2 == 0:
            mask = torch.rand(2)
        training.learn((training.output() * mask).square().mean())


def syncs_by_the_distance(training: Training, guard: Guard) -> None:
    synced, aim = 0, torch.zeros(3, 2)
    for step in guard.steps(3):
        training.learn((training.output() - aim).square().mean())
        if step - synced >= 2:
            aim = training.output().detach()
            synced = step


class Smoothing:
    """A loss that keeps the output of the turn before."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.smoothed: torch.Tensor | None = None

    def turn(self) -> None:
        output = self.training.output()
        loss = output.square().mean()
        if self.smoothed is not None:
            loss = loss + (output - self.smoothed).square().mean()
        self.training.learn(loss)
        self.smoothed = output.detach()


def keeps_it_in_an_attribute(training: Training, guard: Guard) -> None:
    smoothing = Smoothing(training)
    for _ in guard.steps(3):
        smoothing.turn()


class Meter:
    """A count and a sum."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0


def begin(meter: Meter) -> None:
    meter.count, meter.total = 0, 0.0


def add(meter: Meter, loss: float) -> None:
    meter.count += 1
    meter.total += loss


def gives_an_object_to_a_function(training: Training, guard: Guard) -> None:
    losses = Meter()
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        add(losses, float(loss.detach()))
        training.learn(loss / losses.count)


def gives_two_objects_to_a_function(training: Training, guard: Guard) -> None:
    shown, weighed = Meter(), Meter()
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        add(shown, float(loss.detach()))
        add(weighed, float(loss.detach()))
        training.learn(loss / weighed.count)
        print(shown.count)


class Decay:
    """A callback that changes what all callbacks are given."""

    def after(self, context: argparse.Namespace) -> None:
        context.weight *= 0.9


def gives_a_context_to_callbacks(training: Training, guard: Guard) -> None:
    context, callbacks = argparse.Namespace(weight=1.0), [Decay()]
    for _ in guard.steps(3):
        training.learn(training.output().square().mean() * context.weight)
        for callback in callbacks:
            callback.after(context)


def scheduler(training: Training, base: float) -> Callable[[], None]:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        training.rate(base / (1 + 0.1 * ticks))

    return tick


def counts_in_a_closure(training: Training, guard: Guard) -> None:
    tick = scheduler(training, 0.1)
    for _ in guard.steps(3):
        training.learn(training.output().square().mean())
        tick()


def counter() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def counts_in_the_second_of_two_closures(training: Training, guard: Guard) -> None:
    first, second = counter(), counter()
    for _ in guard.steps(3):
        print(first())
        training.rate(0.1 / second())
        training.learn(training.output().square().mean())


class Holder:
    """A closure in an attribute."""

    def __init__(self, training: Training) -> None:
        self.tick = scheduler(training, 0.1)


def counts_in_a_closure_of_an_object(training: Training, guard: Guard) -> None:
    holder = Holder(training)
    for _ in guard.steps(3):
        training.learn(training.output().square().mean())
        holder.tick()


class Options:
    """Values of a run, in the class itself."""

    temperature = 1.0


def changes_an_attribute_of_a_class(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        Options.temperature = max(0.1, Options.temperature * 0.9)
        training.learn(training.output().square().mean() / Options.temperature)


class InTwoMethods:
    """One method reads what another one sets."""

    def __init__(self) -> None:
        self.older = torch.zeros(3, 2)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean() + (output - self.older).square().mean()

    def keep(self, output: torch.Tensor) -> None:
        self.older = output.detach()


def keeps_it_in_another_method(training: Training, guard: Guard) -> None:
    both = InTwoMethods()
    for _ in guard.steps(3):
        output = training.output()
        training.learn(both.loss(output))
        both.keep(output)


def weighed(training: Training, weights: torch.Tensor) -> None:
    training.learn((training.output() * weights).square().mean())


def gives_what_some_turns_make_to_a_function(training: Training, guard: Guard) -> None:
    weights = torch.ones(2)
    for step in guard.steps(3):
        if step % 2 == 1:
            weights = torch.rand(2)
        weighed(training, weights)


def makes_a_mask_at_the_end_of_some_turns(training: Training, guard: Guard) -> None:
    sieve = torch.ones(2)
    for step in guard.steps(3):
        training.learn((training.output() * sieve).square().mean())
        if (step + 1) % 2 == 0:
            sieve = torch.rand(2)


class Cooling:
    """An attribute of a class that its method changes."""

    warmth = 1.0

    @classmethod
    def cool(cls) -> None:
        cls.warmth *= 0.9


def changes_a_class_by_its_method(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        training.learn(training.output().square().mean() * Cooling.warmth)
        Cooling.cool()


class Damping:
    """An attribute of a class that a function changes."""

    factor = 1.0


def damp(kind: type[Damping]) -> None:
    kind.factor *= 0.9


def gives_a_class_to_a_function(training: Training, guard: Guard) -> None:
    for _ in guard.steps(3):
        training.learn(training.output().square().mean() * Damping.factor)
        damp(Damping)


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (compares_with_the_turn_before, "previous"),
        (moves_the_rate_by_the_last_loss, "last"),
        (goes_on_under_another_name, "strength"),
        (unpacks_what_it_carries, "carry"),
        (makes_a_mask_now_and_then, "mask"),
        (syncs_by_the_distance, "aim, synced"),
        (keeps_it_in_an_attribute, "smoothing.smoothed"),
        (gives_an_object_to_a_function, "losses.count"),
        (gives_two_objects_to_a_function, "weighed.count"),
        (gives_a_context_to_callbacks, "context.weight"),
        (counts_in_a_closure, "tick.ticks"),
        (counts_in_the_second_of_two_closures, "second.calls"),
        (counts_in_a_closure_of_an_object, "holder.tick.ticks"),
        (changes_an_attribute_of_a_class, "Options.temperature"),
        (keeps_it_in_another_method, "both.older"),
        (gives_what_some_turns_make_to_a_function, "weights"),
        (makes_a_mask_at_the_end_of_some_turns, "sieve"),
        (changes_a_class_by_its_method, "Cooling.warmth"),
        (gives_a_class_to_a_function, "Damping.factor"),
    ],
)
def test_value_of_an_earlier_turn_that_training_depends_on_is_named(
    script: Script, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = lines(script, caplog)
    assert line.startswith(f"{word} (test_earlier_turns.py:")
    assert "begins anew in a resumed run, and training depends on it; keep " in line
    assert line.endswith("[SG425]")


def keeps_it_registered(training: Training, guard: Guard) -> None:
    kept = training.kept
    for _ in guard.steps(3):
        output = training.output()
        training.learn(output.square().mean() + (output - kept["scores"]).square().mean())
        kept["scores"] = output.detach()


def shows_the_last_loss(training: Training, guard: Guard) -> None:
    shown, norm, begun = 0.0, 0.0, time.monotonic()
    for step in guard.steps(3):
        if norm > 10:
            print(f"step {step}: {norm}")
        print(shown, time.monotonic() - begun)
        begun = time.monotonic()
        shown = training.learn(training.output().square().mean())
        norm = float(nn.utils.clip_grad_norm_(training.model.parameters(), 1.0))


def shows_it_and_learns_by_the_next(training: Training, guard: Guard) -> None:
    error: Any = 0.0
    for _ in guard.steps(3):
        print(float(error))
        error = training.output().square().mean().detach()
        training.learn(training.output().square().mean() * error)


def sets_it_in_both_branches(training: Training, guard: Guard) -> None:
    phase = 0
    for step in guard.steps(3):
        if step % 2 == 0:
            phase = 1
        else:
            phase = 2
        training.learn(training.output().square().mean() * phase)


def goes_on_until_it_is_small(training: Training, guard: Guard) -> None:
    residual, number = float("inf"), guard.restore()
    while number < 3 and residual > 1e-9:
        residual = training.learn(training.output().square().mean())
        number += 1
        guard.step()


def evaluates_now_and_then(training: Training, guard: Guard) -> None:
    score = 0.0
    for step in guard.steps(3):
        if step % 2 == 0:
            score = float(training.output().detach().mean())
        training.learn(training.output().square().mean())
        print(step, score)


def begins_what_it_gives_to_functions(training: Training, guard: Guard) -> None:
    first, second = Meter(), Meter()
    for _ in guard.steps(3):
        begin(first)
        begin(second)
        for _ in range(2):
            loss = training.output().square().mean()
            add(first, float(loss.detach()))
            add(second, 2 * float(loss.detach()))
            training.learn(loss * (1 + second.total / second.count))
        print(first.total / first.count)


def shows_what_a_closure_counts(training: Training, guard: Guard) -> None:
    count = counter()
    for _ in guard.steps(3):
        training.learn(training.output().square().mean())
        print(count())


def follows_the_step_in_a_closure(training: Training, guard: Guard) -> None:
    reached = 0

    def follow(step: int) -> None:
        nonlocal reached
        reached = step
        training.rate(0.1 / (1 + reached))

    for step in guard.steps(3):
        follow(step)
        training.learn(training.output().square().mean())


def counts_registered_moves(training: Training, guard: Guard) -> None:
    kept = training.kept

    def move() -> int:
        kept["moves"] += 1
        return int(kept["moves"])

    for _ in guard.steps(3):
        training.learn(training.output().square().mean() / move())


def learns_a_second_loss_now_and_then(training: Training, guard: Guard) -> None:
    penalty = torch.zeros(())
    for step in guard.steps(3):
        loss = training.output().square().mean()
        if step % 2 == 0:
            penalty = training.output().abs().mean()
            loss = loss + penalty
        training.learn(loss)
        if step % 2 == 0 and float(penalty.detach()) > 1e6:
            break
        print(float(penalty.detach()))


def sets_the_rate_only_if_it_is_another_one(training: Training, guard: Guard) -> None:
    pace = None
    for step in guard.steps(3):
        new = 0.1 * 0.5 ** (step // 2)
        if new != pace:
            training.rate(new)
            pace = new
        training.learn(training.output().square().mean())


def shuffles_once_an_epoch(training: Training, guard: Guard) -> None:
    rows, order, shuffled = torch.randn(8, 4), torch.arange(8), -1
    for step in guard.steps(3):
        epoch = step // 2
        if shuffled != epoch:
            order = torch.randperm(8, generator=torch.Generator().manual_seed(epoch))
            shuffled = epoch
        training.learn(training.model(rows[order[:4]]).square().mean())


def shuffles_where_there_is_no_order(training: Training, guard: Guard) -> None:
    rows, drawn = torch.randn(8, 4), None
    for step in guard.steps(3):
        if drawn is None or step % 2 == 0:
            drawn = torch.randperm(8, generator=torch.Generator().manual_seed(step // 2))
        training.learn(training.model(rows[drawn[:4]]).square().mean())


def sets_it_for_each_remainder(training: Training, guard: Guard) -> None:
    share = 1.0
    for step in guard.steps(3):
        if step % 2 == 0:
            share = 1.0
        elif step % 2 == 1:
            share = 0.5
        training.learn(training.output().square().mean() * share)


def follows_the_number_of_an_inner_loop(training: Training, guard: Guard) -> None:
    noise, made = torch.zeros(2), torch.zeros(3, 2)
    for _ in guard.steps(3):
        loss = torch.zeros(())
        for part in range(4):
            if part % 2 == 0:
                noise = torch.randn(2)
            output = training.output() + noise
            if part > 0:
                loss = loss + (output - made).square().mean()
            made = output.detach()
        training.learn(loss)


def names_items_as_it_names_a_loss(training: Training, guard: Guard) -> None:
    value = 0.0
    for _ in guard.steps(3):
        losses = [training.output().square().mean() for _ in range(2)]
        value = training.learn(sum(value for value in losses))
        print(value)


@pytest.mark.parametrize(
    "script",
    [
        learns_a_second_loss_now_and_then,
        sets_the_rate_only_if_it_is_another_one,
        shuffles_once_an_epoch,
        shuffles_where_there_is_no_order,
        sets_it_for_each_remainder,
        follows_the_number_of_an_inner_loop,
        names_items_as_it_names_a_loss,
        keeps_it_registered,
        shows_the_last_loss,
        shows_it_and_learns_by_the_next,
        sets_it_in_both_branches,
        goes_on_until_it_is_small,
        evaluates_now_and_then,
        begins_what_it_gives_to_functions,
        shows_what_a_closure_counts,
        follows_the_step_in_a_closure,
        counts_registered_moves,
    ],
)
def test_value_that_no_resumed_run_misses_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, caplog) == []
