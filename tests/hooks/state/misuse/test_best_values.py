"""Best values that no checkpoint has: a resumed run keeps its first value as the best. Their exact twins log nothing."""

# ruff: noqa: SIM113, SIM114 - as many scripts have it

from __future__ import annotations

import copy
import heapq
import math
import operator
import shutil
import time
from collections.abc import Callable
from pathlib import Path
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


class Trained:
    """A model, what trains it, and a folder of the script's own."""

    def __init__(self, folder: Path) -> None:
        seed()
        self.folder = folder
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.notes: dict[str, Any] = {"best": math.inf, "weights": None}
        self.values = {"model": self.model, "optimizer": self.optimizer, "notes": self.notes}

    def turn(self) -> float:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(3, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


Script = Callable[[Trained, Guard], None]


def writes_a_file(training: Trained, guard: Guard) -> None:
    best = math.inf
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < best:
            best = loss
            torch.save(training.model.state_dict(), training.folder / "best.pt")


def copies_a_file(training: Trained, guard: Guard) -> None:
    top = 0.0
    for _ in guard.steps(2):
        loss = training.turn()
        is_best = loss > top
        top = max(loss, top)
        torch.save(training.model.state_dict(), training.folder / "last.pt")
        if is_best:
            shutil.copyfile(training.folder / "last.pt", training.folder / "best.pt")


def keeps_weights(training: Trained, guard: Guard) -> None:
    lowest, weights = None, None
    for _ in guard.steps(2):
        loss = training.turn()
        if lowest is None or loss < lowest:
            lowest = loss
            weights = copy.deepcopy(training.model.state_dict())
    assert weights is not None


class Keeper:
    """The lowest loss and the model of it in a file, as users write it."""

    def __init__(self, folder: Path, delta: float = 0.0) -> None:
        self.folder, self.delta = folder, delta
        self.score: float | None = None

    def __call__(self, loss: float, model: nn.Module) -> None:
        if self.score is None:
            self.score = -loss
            self.save_checkpoint(model)
        elif -loss >= self.score + self.delta:
            self.score = -loss
            self.save_checkpoint(model)

    def save_checkpoint(self, model: nn.Module) -> None:
        torch.save(model.state_dict(), self.folder / "best.pt")


def keeps_in_a_class(training: Trained, guard: Guard) -> None:
    keeper = Keeper(training.folder)
    for _ in guard.steps(2):
        keeper(training.turn(), training.model)


def keeps_in_a_dict(training: Trained, guard: Guard) -> None:
    own = {"lowest": math.inf}
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < own["lowest"]:
            own["lowest"] = loss
            torch.save(training.model.state_dict(), training.folder / "best.pt")


class Better:
    """Keeps the best weights, by a comparison that its mode decides."""

    def __init__(self, mode: str) -> None:
        self.better: Callable[[float, float], bool] = operator.lt if mode == "min" else operator.gt
        self.top = math.inf if mode == "min" else -math.inf
        self.weights: dict[str, Any] | None = None

    def see(self, value: float, model: nn.Module) -> None:
        if self.better(value, self.top):
            self.top = value
            self.weights = copy.deepcopy(model.state_dict())


def compares_by_a_call(training: Trained, guard: Guard) -> None:
    judge = Better("min")
    for _ in guard.steps(2):
        judge.see(training.turn(), training.model)


def decides_by_a_name(training: Trained, guard: Guard) -> None:
    record = 1e9
    for _ in guard.steps(2):
        loss = training.turn()
        improved = loss < record
        if improved:
            record = loss
            torch.save(training.model.state_dict(), training.folder / "best.pt")


def keeps_one_of_each_name(training: Trained, guard: Guard) -> None:
    records = {"loss": math.inf, "square": math.inf}
    for _ in guard.steps(2):
        loss = training.turn()
        values = {"loss": loss, "square": loss**2}
        for name in values:
            if values[name] < records[name]:
                records[name] = values[name]
                torch.save(training.model.state_dict(), training.folder / f"{name}.pt")


def keeps_the_best_two(training: Trained, guard: Guard) -> None:
    heap: list[float] = []
    for _ in guard.steps(2):
        loss = training.turn()
        if len(heap) < 2 or -loss > heap[0]:
            heapq.heappush(heap, -loss)
            torch.save(training.model.state_dict(), training.folder / f"{loss}.pt")


def numbers_its_files(training: Trained, guard: Guard) -> None:
    number = 0
    for _ in guard.steps(2):
        training.turn()
        number += 1
        if number % 2 == 0:
            torch.save(training.model.state_dict(), training.folder / f"{number}.pt")


@pytest.mark.parametrize(
    ("script", "word", "call", "remedy"),
    [
        (writes_a_file, "best", "torch.save", "it in a registered dict, as in progress = {'best': math.inf}"),
        (copies_a_file, "top", "shutil.copyfile", "progress = {'top': 0.0}"),
        (keeps_weights, "lowest", "copy.deepcopy", "them in a registered dict, as in progress = {'lowest': …, 'weights': None}"),
        (keeps_in_a_class, "keeper.score", "keeper.save_checkpoint", "progress = {'score': …}"),
        (keeps_in_a_dict, "own['lowest']", "torch.save", "add own to spotguard.register(…) [SG425]"),
        (compares_by_a_call, "judge.top", "copy.deepcopy", "them in a registered dict, as in progress = {'top': …, 'weights': None}"),
        (decides_by_a_name, "record", "torch.save", "progress = {'record': 1000000000.0}"),
        (keeps_one_of_each_name, "records", "torch.save", "progress = {'records': …}"),
        (keeps_the_best_two, "heap", "torch.save", "progress={'heap': heap}"),
        (numbers_its_files, "number", "torch.save", "progress = {'number': 0}, or compute it"),
    ],
)  # fmt: skip
def test_value_that_decides_what_is_kept_is_named(
    script: Script, word: str, call: str, remedy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [line] = lines(script, tmp_path, caplog)
    assert line.startswith(f"{word} (test_best_values.py:")
    assert f"and what {call}(…) keeps (test_best_values.py:" in line
    assert remedy in line


# --- exact twins ---


def keeps_it_registered(training: Trained, guard: Guard) -> None:
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < training.notes["best"]:
            training.notes["best"] = loss
            training.notes["weights"] = copy.deepcopy(training.model.state_dict())
            torch.save(training.model.state_dict(), training.folder / "best.pt")


def begins_with_what_is_registered(training: Trained, guard: Guard) -> None:
    guard.restore()
    least = training.notes["best"]
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < least:
            training.notes["best"] = least = loss
            torch.save(training.model.state_dict(), training.folder / "best.pt")


def begins_with_its_own_file(training: Trained, guard: Guard) -> None:
    known = training.folder / "best.pt"
    least = torch.load(known)["loss"] if known.exists() else math.inf
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < least:
            least = loss
            torch.save({"loss": loss, "model": training.model.state_dict()}, known)


def writes_by_the_clock(training: Trained, guard: Guard) -> None:
    last = time.monotonic()
    for _ in guard.steps(2):
        training.turn()
        now = time.monotonic()
        if now > last + 3600:
            last = now
            torch.save(training.model.state_dict(), training.folder / "hour.pt")


def only_shows_its_best(training: Trained, guard: Guard) -> None:
    smallest = math.inf
    for _ in guard.steps(2):
        loss = training.turn()
        if loss < smallest:
            smallest = loss
            print("best so far", smallest)


def finds_the_best_of_a_turn(training: Trained, guard: Guard) -> None:
    for _ in guard.steps(2):
        training.turn()
        minimum = math.inf
        for loss in (3.0, 2.0):
            if loss < minimum:
                minimum = loss
                torch.save(training.model.state_dict(), training.folder / "turn.pt")


def makes_a_cache_once(training: Trained, guard: Guard) -> None:
    cache = None
    for _ in guard.steps(2):
        training.turn()
        if cache is None:
            cache = [1.0]
            torch.save(cache, training.folder / "cache.pt")


def writes_after_so_many_turns(training: Trained, guard: Guard) -> None:
    since = 0
    for _ in guard.steps(2):
        training.turn()
        since += 1
        if since >= 2:
            torch.save(training.model.state_dict(), training.folder / "last.pt")
            since = 0


def saves_by_its_guard(training: Trained, guard: Guard) -> None:
    least_yet = math.inf
    for _ in range(guard.restore(), 2):
        loss = training.turn()
        guard.step()
        if loss < least_yet:
            least_yet = loss
            guard.save()


@pytest.mark.parametrize(
    "script",
    [
        keeps_it_registered,
        begins_with_what_is_registered,
        begins_with_its_own_file,
        writes_by_the_clock,
        only_shows_its_best,
        finds_the_best_of_a_turn,
        makes_a_cache_once,
        writes_after_so_many_turns,
        saves_by_its_guard,
    ],
)
def test_value_that_no_resumed_run_misses_is_not_named(
    script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, tmp_path, caplog) == []


def lines(script: Script, folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that a first run of a script logs about values that begin anew."""
    training = Trained(folder)
    with guarded(WatchedStore(), training.values) as guard:
        guard.restore()
        script(training, guard)
    return [each for each in said(caplog) if "begins anew in a resumed run" in each]
