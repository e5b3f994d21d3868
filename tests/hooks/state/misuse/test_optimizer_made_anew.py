"""An optimizer made anew during training: the registered one is dead, and what is saved says that its moments are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.catalog import find_whole, scan
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.save.request import SavedCheckpoint
from spotguard.testing import preempt
from tests.fakes.loops import Pair, Wrapper, said, watched
from tests.fakes.training import PATIENCE, guarded, wait_shut
from tests.fakes.two_guards import on_all, two_guards
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL, NEW = 30, 10
WHY = (
    "the registered optimizer 'optimizer' no longer steps, and AdamW trains model.weight, model.bias in its place: "
    "checkpoints lack the moments; change 'optimizer' itself (param_groups, state), or register all optimizers before "
    "training begins"
)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")


class Restarted:
    """A model whose optimizer is made anew after ten steps, with another learning rate."""

    def __init__(self, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.fused = fused
        self.model = nn.Linear(32, 8)
        self.optimizer = self.made(1e-2)
        self.values: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def made(self, rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=rate, fused=self.fused)

    def step(self, number: int) -> None:
        if number == NEW:
            self.optimizer = self.made(3e-3)
        self.train(number, self.optimizer)

    def train(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        data = torch.randn(16, 32, generator=torch.Generator().manual_seed(number))
        self.model(data).square().mean().backward()
        optimizer.step()


def levels(store: WatchedStore) -> dict[int, str]:
    """Of the newest whole checkpoint of each step, its level."""
    found: dict[int, str] = {}
    for folder in scan(store, "run"):
        whole = find_whole(store, "run", step=folder.name.step, levels=LEVELS)
        assert whole is not None
        found.setdefault(folder.name.step, whole.level)
    return found


def moments(store: WatchedStore, step: int) -> list[str]:
    whole = find_whole(store, "run", step=step, levels=LEVELS)
    assert whole is not None
    return [name for name in whole.tensors if name.startswith("optimizer/")]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return said(caplog, logging.ERROR)


@pytest.mark.parametrize("fused", [False, True])
def test_optimizer_made_anew(fused: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Saved by hand before it and after it. A later start takes the full one, and makes the new optimizer again: it ends
    with the bits of the undisturbed run."""
    undisturbed = Restarted(fused=fused)
    for number in range(TOTAL):
        undisturbed.step(number)
    store, job = WatchedStore(), Restarted(fused=fused)
    with watched(job.values, store=store) as guard:
        for number in range(guard.restore(), 20):
            job.step(number)
            guard.step()
            if number in (9, 10, 19):
                saved = guard.save()
                assert saved.level == ("full" if number == 9 else "weights")
                assert saved.why == ("" if number == 9 else WHY)
        assert guard._position().misuse == WHY
    assert errors(caplog) == [f"step {step} is saved without its moments: {WHY}" for step in (11, 20)]
    assert [each for each in said(caplog) if each == WHY] == [WHY], "and once when it was seen"
    assert levels(store) == {10: "full", 11: "weights", 20: "weights"}
    assert moments(store, 10)
    assert moments(store, 20) == []

    again = Restarted(fused=fused)
    with watched(again.values, store=store) as guard:
        done = guard.restore()
        for number in range(done, TOTAL):
            again.step(number)
            guard.step()
    assert done == NEW
    assert torch.equal(again.model.weight, undisturbed.model.weight)


def test_it_is_full_again_when_the_registered_one_steps_and_the_other_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, job = WatchedStore(), Restarted()
    first, other = job.optimizer, job.made(3e-3)
    saved: list[SavedCheckpoint] = []
    with watched(job.values, store=store) as guard:
        guard.restore()
        for steppers in ([first], [other], [other, first], [], [first], [first], [other]):
            for optimizer in steppers:
                job.train(len(saved), optimizer)
            guard.step()
            saved.append(guard.save())
            assert bool(guard._position().misuse) is (saved[-1].level != "full")
    assert [each.level for each in saved] == [
        "full",
        "weights",
        "weights",
        "weights",
        "full",
        "full",
        "weights",
    ]
    assert len(errors(caplog)) == 4


def test_an_inner_loop_beside_the_registered_one_takes_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    """An optimizer made anew for each turn, over the same parameters, before the outer step."""
    store, job = WatchedStore(), Restarted()
    with watched(job.values, store=store) as guard:
        guard.restore()
        for number in range(6):
            inner = torch.optim.SGD(job.model.parameters(), lr=0.1)
            for batch in range(3):
                job.train(batch, inner)
            job.train(number, job.optimizer)
            guard.step()
        saved, position = guard.save(), guard._position()
    assert (saved.level, position.misuse, position.mode) == ("full", "", "boundary")
    assert said(caplog) == [
        "from now on a save waits for the next guard.step(): SGD trains model.weight, model.bias and is not registered [SG406]"
    ]


def test_going_back_is_to_a_living_optimizer() -> None:
    store, job = WatchedStore(), Restarted()
    with watched(job.values, store=store) as guard:
        first = job.optimizer
        for number in range(guard.restore(), 12):
            job.step(number)
            guard.step()
            if number < NEW:
                guard.save()
        assert guard.save().level == "weights"
        assert guard.restore(step=NEW) == NEW
        assert guard.save().level == "full"
        job.train(NEW, first)
        guard.step()
        assert guard.save().level == "full"


@pytest.mark.parametrize("lossy", [False, True])
def test_a_notice_commits_what_there_is(
    lossy: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The record in the store, and the log, say why that is not everything."""
    if lossy:
        monkeypatch.setenv("SPOTGUARD_LOSSY_MOMENTS", "true")
    job = Restarted()
    with guarded(folder, job.values) as guard:
        for number in range(guard.restore(), 15):
            job.step(number)
            guard.step()
        preempt(guard, seconds=20)
        job.step(15)
        with pytest.raises(Preempted):
            guard.step()
    (record,) = [json.loads(path.read_text()) for path in folder.rglob("outcomes/*.json")]
    assert (record["committed"], record["level"], record["reason"]) == (True, "weights", WHY)
    assert errors(caplog) == [f"step {record['step']} is saved without its moments: {WHY}"]


@pytest.mark.parametrize("staged", [False, True])
def test_background_checkpoints(
    staged: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay at the lower level from the first one on, from memory and over a local disk, and no more of them stay than
    of full ones; the newest full ones stay too."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "2")
    if staged:
        monkeypatch.setenv("SPOTGUARD_STAGE", str(folder / "stage"))
    store, job = WatchedStore(), Restarted()
    with guarded(store, job.values) as guard:
        guard.restore()
        for number in range(23):
            job.step(number)
            guard.step()
            if number % 2:
                guard._saver.background()
                if number > NEW:
                    wait_shut(guard)
            # Asked for at each second boundary; once the other one steps it is made at the next.
            if number < NEW or not number % 2:
                for each in [*guard._saver._beside]:
                    assert each.done.wait(PATIENCE)
        last = guard._checkpointer.last
    assert last is not None
    assert (last.step, last.level, last.why) == (23, "weights", WHY)
    assert levels(store) == {8: "full", 10: "full", 21: "weights", 23: "weights"}
    assert len(errors(caplog)) == 6


def test_the_live_one_of_two_optimizers_keeps_its_moments() -> None:
    store, pair = WatchedStore(), Pair()
    with watched(pair.values, store=store) as guard:
        guard.restore()
        pair.turn()
        guard.step()
        pair.oa = torch.optim.AdamW(pair.a.parameters())
        pair.turn(1)
        guard.step()
        assert guard.save().level == "weights"
    whole = find_whole(store, "run", levels=LEVELS)
    assert whole is not None
    kept = {name.split("/")[0] for name in whole.tensors if "/state/" in name}
    assert kept == {"ob"}

    fresh = Pair()
    with watched(fresh.values, store=store) as guard:
        assert guard.restore() == 2
    assert torch.equal(fresh.b.weight, pair.b.weight)
    assert fresh.ob.state[fresh.b.weight]["step"] == 2
    assert not fresh.oa.state


Change = Callable[[torch.optim.Optimizer], None]


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.param_groups[0].update(lr=1e-4),
        lambda o: o.state.clear(),
    ],
    ids=["rate", "state"],
)
def test_a_change_of_the_registered_one_itself_is_the_way_out(
    change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    store, job = WatchedStore(), Restarted()
    with watched(job.values, store=store) as guard:
        guard.restore()
        for number in range(6):
            if number == 3:
                change(job.optimizer)
            job.train(number, job.optimizer)
            guard.step()
        assert guard.save().level == "full"
    assert said(caplog) == []


def test_two_ranks_commit_the_lower_level_together() -> None:
    store = WatchedStore()
    with two_guards([store, store]) as trainers:

        def trained(rank: int) -> str:
            guard = trainers[rank].guard
            trainers[rank].step()
            params = guard._state._optimizers[0].tensors[:2]
            other = torch.optim.AdamW(params)
            for param in params:
                param.grad = torch.ones_like(param)
            other.step()
            guard.step()
            return guard.save().level

        assert on_all(trained) == ["weights", "weights"]
    whole = find_whole(store, "run", levels=LEVELS)
    assert whole is not None
    assert (whole.name.step, whole.level, len(whole.manifests)) == (2, "weights", 2)
    assert moments(store, 2) == []
    with two_guards([store, store]) as trainers:
        assert [trainer.guard._gate.place.completed for trainer in trainers] == [2, 2]
        assert all(not trainer.guard._state._optimizers[0].optimizer.state for trainer in trainers)


def test_behind_a_wrapper_that_is_looked_through() -> None:
    store, job = WatchedStore(), Restarted()
    with watched({"model": job.model, "optimizer": Wrapper(job.optimizer)}, store=store) as guard:
        for number in range(guard.restore(), 12):
            job.step(number)
            guard.step()
            if number in (9, 11):
                saved = guard.save()
                assert saved.level == ("full" if number == 9 else "weights")
    assert moments(store, 10)
    assert moments(store, 12) == []
