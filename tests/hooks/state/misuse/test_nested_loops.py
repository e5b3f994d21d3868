"""Loops that begin at their first number again behind a restore, and loops in functions that a loop calls: named, or exact and silent."""
# ruff: noqa: SIM113 - as many scripts count

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.hooks.guard import Guard
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

#: The options of the scripts below.
ARGS = argparse.Namespace(pace=0.1, passes=2, dry_run=False)
#: The rows of data, and those of one batch.
DATA, WIDTH = torch.arange(24.0).view(12, 2), 4


class Training:
    """The values that the loops below train."""

    def __init__(self) -> None:
        seed()
        self.cell, self.head = nn.LSTM(2, 4), nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD([*self.cell.parameters(), *self.head.parameters()], lr=ARGS.pace)
        self.progress: dict[str, Any] = {"updates": 0, "left": 8, "pace": 0.1, "hidden": None, "ring": [0, 0]}
        self.values = dict(vars(self))

    def init_hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)

    def learn(self, at: int, hidden: Any = None, pace: float = 0.1) -> Any:
        out, hidden = self.cell(DATA[at : at + WIDTH, None], hidden or self.init_hidden())
        loss = self.head(out).square().mean()
        loss.backward()
        for group in self.optimizer.param_groups:
            group["lr"] = pace
        self.optimizer.step()
        self.optimizer.zero_grad()
        return tuple(each.detach() for each in hidden)

    def turn(self) -> None:
        self.learn(0)


class Settings:
    """Has an option under the same name, as an optimizer that is made with `lr=args.lr`."""

    def __init__(self, pace: float) -> None:
        self.pace = pace


Script = Callable[[Training, Guard], None]


def anew(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(3):
        training.turn()
        guard.step()


def anew_in_epochs(training: Training, guard: Guard) -> None:
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


def anew_from_1_in_a_function(training: Training, guard: Guard) -> None:
    guard.restore()

    def train() -> None:
        for _, at in enumerate(range(0, DATA.size(0) - 1, WIDTH)):
            training.learn(at)
            if ARGS.dry_run:
                break
            guard.step()

    for _ in range(1, ARGS.passes + 1):
        train()


def anew_to_a_length(training: Training, guard: Guard) -> None:
    guard.restore()
    for at in range(len(DATA) // WIDTH):
        training.learn(at)
        guard.step()


def until_a_loss_is_not_finite(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(2):
        for _ in range(3):
            loss = DATA[:WIDTH].square().mean()
            if not torch.isfinite(loss):
                break
            training.turn()
            guard.step()


def until_a_loss_is_small_or_not_finite(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(2):
        for _ in range(3):
            loss = DATA[:WIDTH].square().mean()
            if loss.isnan() or loss < 1e-9:
                break
            training.turn()
            guard.step()


def to_the_length_of_the_rest(training: Training, guard: Guard) -> None:
    rest = DATA[guard.restore() :]
    for at in range(len(rest)):
        training.learn(at)
        guard.step()


def to_an_option_that_it_is_given(training: Training, guard: Guard) -> None:
    done = guard.restore()

    def fit(options: argparse.Namespace) -> None:
        for _ in range(options.rounds):
            training.turn()
            guard.step()

    print(done + 1)
    fit(argparse.Namespace(rounds=2))


def to_the_length_of_what_it_is_given(training: Training, guard: Guard) -> None:
    done = guard.restore()

    def fit(rows: list[int]) -> None:
        entries = len(rows)
        for _ in range(entries):
            training.turn()
            guard.step()

    fit([*range(done, done + 2)])


def to_a_registered_number(training: Training, guard: Guard) -> None:
    guard.restore()
    for number in range(min(3, training.progress["left"])):
        training.turn()
        training.progress["left"] = 8 - number
        guard.step()


def to_a_number_of_what_is_left(training: Training, guard: Guard) -> None:
    guard.restore()
    left = 8 - training.progress["updates"]
    for _ in range(min(3, left)):
        training.turn()
        training.progress["updates"] += 1
        guard.step()


def drops_the_step_and_shows_it(training: Training, guard: Guard) -> None:
    shown = guard.restore()
    print("resumed at", shown)
    for _ in range(2):
        for at in range(len(DATA) // WIDTH):
            training.learn(at)
            guard.step()


def over_batches_of_a_list(training: Training, guard: Guard) -> None:
    starts = [0, 4, 8]
    guard.restore()
    for _ in range(2):
        for _, at in enumerate(starts):
            training.learn(at)
            guard.step()


def over_what_is_registered(training: Training, guard: Guard) -> None:
    guard.restore()
    for _ in range(2):
        for _ in training.progress["ring"]:
            training.turn()
            guard.step()


class Trainer:
    """Keeps what is left to do, and when to stop, as attributes."""

    def __init__(self, training: Training, guard: Guard) -> None:
        self.training, self.guard, self.should_stop = training, guard, False
        self.total, self.already = 8, guard.restore()

    @property
    def remaining(self) -> int:
        return min(3, 8 - int(self.training.progress["updates"]))

    def turn(self) -> None:
        self.training.turn()
        self.training.progress["updates"] += 1
        self.guard.step()

    def fit_the_rest(self) -> None:
        for _ in range(self.total - self.already):
            self.turn()
            if self.training.progress["updates"] % 3 == 0:
                raise KeyError

    def fit_what_remains(self) -> None:
        for _ in range(self.remaining):
            self.turn()

    def fit_until_it_stops(self) -> None:
        for _ in range(100):
            self.turn()
            self.should_stop = self.training.progress["updates"] % 3 == 0
            if self.should_stop:
                break


def to_the_rest_of_an_object(training: Training, guard: Guard) -> None:
    with contextlib.suppress(KeyError):
        Trainer(training, guard).fit_the_rest()


def to_a_property(training: Training, guard: Guard) -> None:
    Trainer(training, guard).fit_what_remains()


def until_an_object_stops(training: Training, guard: Guard) -> None:
    Trainer(training, guard).fit_until_it_stops()


def to_a_number_less_what_is_done(training: Training, guard: Guard) -> None:
    done, end = guard.restore(), 8
    end -= done
    for _ in range(min(3, end)):
        training.turn()
        guard.step()


def to_what_a_function_gives(training: Training, guard: Guard) -> None:
    guard.restore()
    progress = training.progress

    def to_do() -> int:
        return min(3, 8 - int(progress["updates"]))

    for _ in range(to_do()):
        training.turn()
        progress["updates"] += 1
        guard.step()


def to_an_error_of_its_own(training: Training, guard: Guard) -> None:
    guard.restore()
    try:
        for _ in range(100):
            training.turn()
            training.progress["updates"] += 1
            guard.step()
            if training.progress["updates"] % 3 == 0:
                next(iter(()))
    except StopIteration:
        pass


def of_epochs_that_are_left(training: Training, guard: Guard) -> None:
    done = guard.restore()
    for _ in range(done // 3, 2):
        for _ in range(3):
            training.turn()
            guard.step()


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (anew, True),
        (anew_in_epochs, True),
        (from_what_is_done, False),
        (skips, False),
        (steps_of_each_phase, False),
        (the_rest, False),
        (ends_by_a_step, False),
        (ends_by_what_is_registered, False),
        (anew_from_1_in_a_function, True),
        (anew_to_a_length, True),
        (until_a_loss_is_not_finite, True),
        (until_a_loss_is_small_or_not_finite, False),
        (to_the_length_of_the_rest, False),
        (to_an_option_that_it_is_given, True),
        (to_the_length_of_what_it_is_given, False),
        (to_a_registered_number, False),
        (to_a_number_of_what_is_left, False),
        (of_epochs_that_are_left, False),
        (drops_the_step_and_shows_it, True),
        (over_batches_of_a_list, True),
        (over_what_is_registered, False),
        (to_the_rest_of_an_object, False),
        (to_a_property, False),
        (until_an_object_stops, False),
        (to_a_number_less_what_is_done, False),
        (to_what_a_function_gives, False),
        (to_an_error_of_its_own, False),
    ],
)
def test_loop_that_begins_anew_behind_a_restore_is_named(
    script: Script, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()

    def lines() -> list[str]:
        training = Training()
        caplog.clear()
        with guarded(store, training.values) as guard:
            script(training, guard)
            guard.save()
        return [each for each in said(caplog) if "begins at its first number again" in each]

    assert lines() == []
    resumed = lines()
    assert len(resumed) == named
    if named:
        nested = script not in (anew, anew_to_a_length, to_an_option_that_it_is_given)
        remedy = (
            "begin it, and the loop in it," if nested else "write `for step in range(guard.restore(), total)`"
        )
        assert remedy in resumed[0]


# --- what they carry on ---


def carries_two_hidden_states(training: Training, guard: Guard) -> None:
    for _ in range(ARGS.passes):
        hidden = training.init_hidden()
        for at in range(0, 12, WIDTH):
            hidden = training.learn(at, hidden)
            guard.step()


def anneals_an_option(training: Training, guard: Guard) -> None:
    pace, known = ARGS.pace, Settings(pace=ARGS.pace)

    def train() -> None:
        for at in range(0, 12, WIDTH):
            training.learn(at, None, pace)
            guard.step()

    for number in range(ARGS.passes):
        train()
        if number > known.pace:
            pace /= 4.0


class Memory(NamedTuple):
    """Two hidden states under names."""

    h: torch.Tensor
    c: torch.Tensor


def carries_a_named_tuple(training: Training, guard: Guard) -> None:
    memory = Memory(torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    for at in range(0, 12, WIDTH):
        memory = Memory(*training.learn(at, memory))
        guard.step()


def init_states() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)


def carries_both_by_name(training: Training, guard: Guard) -> None:
    first, second = init_states()
    for at in range(0, 12, WIDTH):
        first, second = training.learn(at, (first, second))
        guard.step()


def fills_a_registered_ring(training: Training, guard: Guard) -> None:
    slot, ring = 0, training.progress["ring"]
    for at in range(0, 12, WIDTH):
        ring[slot % 2] = training.learn(at)[0]
        slot += 1
        guard.step()


def fills_a_ring_by_the_step(training: Training, guard: Guard) -> None:
    known = training.progress["ring"]
    for at in range(0, 12, WIDTH):
        known[at // WIDTH % 2] = training.learn(at)[0]
        guard.step()


def begins_hidden_states_in_each_turn(training: Training, guard: Guard) -> None:
    for at in range(0, 12, WIDTH):
        state = training.init_hidden()
        for row in range(at, at + 2):
            state = training.learn(row, state)
        guard.step()


def keeps_hidden_states_in_a_dict(training: Training, guard: Guard) -> None:
    known = training.progress
    for at in range(0, 12, WIDTH):
        known["hidden"] = training.learn(at, known["hidden"], known["pace"])
        known["pace"] /= 4.0
        guard.step()


def widens_a_shape(training: Training, guard: Guard) -> None:
    shape: tuple[Any, ...] = ()
    for at in range(0, 12, WIDTH):
        shape = (*shape, at)
        print(shape)
        training.turn()
        guard.step()


@pytest.mark.parametrize(
    ("script", "entry"),
    [
        (carries_two_hidden_states, "'hidden': …"),
        (anneals_an_option, "'pace': ARGS.pace"),
        (carries_a_named_tuple, "'memory': …"),
        (carries_both_by_name, "'first': …, 'second': …"),
        (fills_a_registered_ring, "'slot': 0"),
        (fills_a_ring_by_the_step, ""),
        (begins_hidden_states_in_each_turn, ""),
        (keeps_hidden_states_in_a_dict, ""),
        (widens_a_shape, ""),
    ],
)
def test_nested_loop_that_carries_a_value_on_is_named(
    script: Script, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    lines = [each for each in said(caplog) if "begins anew in a resumed run" in each]
    assert len(lines) == bool(entry)
    assert all(f"progress = {{{entry}}}" in each for each in lines)
