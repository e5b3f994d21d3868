"""A start behind values that were not finite (`--recover nan=back`): from the last good checkpoint, and with other data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import spotguard
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc.failure_classes import SKIP_STEPS
from spotguard.providers.errors import UsageError
from tests.fakes.store import FakeStore
from tests.fakes.training import Job, guarded, small, step_on

pytestmark = pytest.mark.torch

STEPS = 12


def loader() -> spotguard.ResumableLoader:
    return spotguard.ResumableLoader(DataLoader(TensorDataset(torch.arange(STEPS))))


class Life:
    """One start of a training that takes one batch a step, and the batches that it took."""

    def __init__(self, store: FakeStore, **more: Any) -> None:
        self.job: Job = small()
        self.loader = loader()
        self.store, self.more = store, more
        self.taken: list[int] = []

    def lives(self, until: int, saves: dict[int, float]) -> int:
        """Train up to a step, and save behind some of them, with these losses; return the step at which it began."""
        with guarded(self.store, {**self.job.values, "loader": self.loader, **self.more}) as guard:
            began = done = guard.restore()
            for batch in self.loader if done < until else ():
                self._learn(guard, done, batch, saves)
                done += 1
                if done == until:
                    break
        return began

    def _learn(self, guard: Guard, done: int, batch: Any, saves: dict[int, float]) -> None:
        self.taken.append(int(batch[0]))
        guard.watch_loss(saves.get(done + 1, 1.0))
        step_on(guard, self.job, done)
        if done + 1 in saves:
            guard.save()


def test_it_begins_at_the_last_good_checkpoint_behind_the_data(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    Life(store).lives(6, {3: 1.0, 5: float("nan")})
    monkeypatch.setenv(SKIP_STEPS, "7")
    again = Life(store)
    assert again.lives(5, {5: 1.0}) == 3
    assert again.taken == [7, 8]
    assert "loader skips 4 batches, the data of steps 3 to 6" in caplog.text
    monkeypatch.delenv(SKIP_STEPS)
    later = Life(store)
    assert later.lives(6, {}) == 5
    assert later.taken == [9]


def test_a_launchers_own_restart_skips_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts its ranks with the same variables. Beyond the failed step training does not go back any more."""
    store = FakeStore()
    Life(store).lives(3, {2: 1.0})
    monkeypatch.setenv(SKIP_STEPS, "4")
    Life(store).lives(3, {3: 1.0})
    again = Life(store)
    assert again.lives(5, {5: 1.0}) == 3
    assert again.taken == [5, 6]
    last = Life(store)
    assert (last.lives(6, {}), last.taken) == (5, [7])


def test_without_a_checkpoint_it_begins_behind_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_STEPS, "2")
    life = Life(FakeStore())
    assert (life.lives(2, {}), life.taken) == (0, [2, 3])


def test_a_loader_at_the_beginning_of_its_pass_is_another_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation's loader skips nothing."""
    store, other = FakeStore(), loader()
    Life(store, validation=other).lives(3, {2: 1.0})
    monkeypatch.setenv(SKIP_STEPS, "3")
    other = loader()
    life = Life(store, validation=other)
    assert life.lives(3, {}) == 2
    assert (life.taken, len(list(other))) == ([3], STEPS)


def test_a_script_with_a_loader_of_its_own_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, job = FakeStore(), small()
    monkeypatch.setenv(SKIP_STEPS, "3")
    with guarded(store, job.values) as guard:
        guard.restore()
    assert (
        "the data of steps 0 to 2 is for the script to skip (SPOTGUARD_SKIP_STEPS), because the state has no"
        in caplog.text
    )


@pytest.mark.parametrize("text", ["-1", "7.5", "1" * 20, "x"])
def test_what_is_no_step_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_STEPS, text)
    with (
        pytest.raises(UsageError, match="is not a number of steps; unset it"),
        guarded(FakeStore(), small().values),
    ):
        pass
