"""Generators that a script draws from and no checkpoint has: named where each turn moves them, and their exact twins log nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

import spotguard
from spotguard.hooks.guard import Guard
from spotguard.hooks.state.misuse.script.loose_generators import LooseGenerators
from tests.fakes.loops import said
from tests.fakes.training import guarded, seed
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Training:
    """The values that the loops below train, and the numbers with which they do."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.values: dict[str, Any] = dict(vars(self))

    def turn(self, number: float) -> None:
        self.optimizer.zero_grad()
        (self.model(torch.ones(3, 4)).square().mean() * number).backward()
        self.optimizer.step()


Script = Callable[[Training, Guard], None]


def of_numpy(training: Training, guard: Guard) -> None:
    rng = np.random.default_rng(0)
    for _ in guard.steps(5):
        training.turn(rng.random())


def of_numpy_as_it_was(training: Training, guard: Guard) -> None:
    rng = np.random.RandomState(0)
    for _ in guard.steps(5):
        training.turn(rng.rand())


def of_python(training: Training, guard: Guard) -> None:
    rng = random.Random(0)
    for _ in range(guard.restore(), 5):
        training.turn(rng.random())
        guard.step()


def of_torch(training: Training, guard: Guard) -> None:
    source = torch.Generator()
    source.manual_seed(1)
    for _ in guard.steps(5):
        training.turn(float(torch.rand((), generator=source)))


class Noise:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.source = {"rng": random.Random(0)}

    def draw(self) -> float:
        return self.source["rng"].random()


def of_an_object(training: Training, guard: Guard) -> None:
    noise = Noise()
    for _ in guard.steps(5):
        training.turn(noise.draw())


class Slotted:
    """The same, without a dict of attributes."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(0)


def of_a_slot(training: Training, guard: Guard) -> None:
    slotted = Slotted()
    for _ in guard.steps(5):
        training.turn(slotted.rng.random())


class Wrapped:
    """Has another one, as the wrappers of an environment do."""

    def __init__(self, env: object) -> None:
        self.env = env


def of_a_wrapped_environment(training: Training, guard: Guard) -> None:
    env: Any = Wrapped(Wrapped(Wrapped(Slotted())))
    for _ in guard.steps(5):
        training.turn(env.env.env.env.rng.random())


@pytest.mark.parametrize(
    ("script", "word", "kind"),
    [
        (of_numpy, "rng", "numpy's Generator"),
        (of_numpy_as_it_was, "rng", "numpy's RandomState"),
        (of_python, "rng", "random's Random"),
        (of_torch, "source", "torch's Generator"),
        (of_a_slot, "slotted.rng", "random's Random"),
        (of_a_wrapped_environment, "env.env.env.env.rng", "random's Random"),
        (of_an_object, "noise.source['rng']", "random's Random"),
    ],
)
def test_generator_that_each_turn_moves_is_named_once(
    script: Script, word: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    (line,) = said(caplog)
    assert line.startswith(f"{word} ({kind}) draws in each turn and no checkpoint has it")
    assert line.endswith(f": {word}}} [SG425]")


# --- exact twins ---


def registered_as_told(training: Training, guard: Guard) -> None:
    for _ in guard.steps(5):
        training.turn(training.values["generators"]["rng"].random())


def seeded_by_the_step(training: Training, guard: Guard) -> None:
    first, second, third = torch.Generator(), np.random.RandomState(0), random.Random(0)
    for step in guard.steps(5):
        first.manual_seed(step)
        second.seed(step)
        third.seed(step)
        training.turn(float(torch.rand((), generator=first)) + second.rand() + third.random())


def made_in_each_turn(training: Training, guard: Guard) -> None:
    for step in guard.steps(5):
        rng = np.random.default_rng([1, step])
        training.turn(rng.random())


def set_by_the_script(training: Training, guard: Guard) -> None:
    kept, notes = random.Random(0), training.values["notes"]
    kept.setstate(notes.setdefault("rng", kept.getstate()))
    for _ in guard.steps(5):
        training.turn(kept.random())
        notes["rng"] = kept.getstate()


def drawn_from_before_the_loop(training: Training, guard: Guard) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.random(5)
    for step in guard.steps(5):
        training.turn(numbers[step])


def wound_to_the_step(training: Training, guard: Guard) -> None:
    rng, done = random.Random(0), guard.restore()
    for _ in range(done):
        rng.random()
    for _ in range(done, 5):
        training.turn(rng.random())
        guard.step()


def of_a_registered_loader(training: Training, guard: Guard) -> None:
    loader = training.values["loader"]
    rng = loader.loader.generator
    assert isinstance(rng, torch.Generator)
    for _ in guard.steps(5):
        for batch in loader:
            training.turn(float(batch[0]))


@pytest.mark.parametrize(
    "script",
    [
        registered_as_told,
        seeded_by_the_step,
        made_in_each_turn,
        set_by_the_script,
        drawn_from_before_the_loop,
        wound_to_the_step,
        of_a_registered_loader,
    ],
)
def test_generator_that_goes_on_or_begins_anew_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    data: Any = [1.0, 2.0]
    drawn = torch.Generator().manual_seed(1)
    loader: Any = torch.utils.data.DataLoader(data, shuffle=True, generator=drawn)
    training.values |= {
        "generators": {"rng": np.random.default_rng(0)},
        "notes": {},
        "loader": spotguard.ResumableLoader(loader),
    }
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    assert [each for each in said(caplog) if "draws in each turn" in each] == []


def test_generator_that_is_registered_asks_for_no_look_at_each_boundary() -> None:
    rng = np.random.default_rng(0)
    watch = LooseGenerators({"generators": {"rng": rng}})
    asked = []
    for _ in range(5):
        watch.look()
        asked.append(watch.unsettled)
        rng.random()
    assert asked == [False, True, False, False, False]
