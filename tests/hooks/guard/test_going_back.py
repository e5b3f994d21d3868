"""A start behind values that were not finite (`--recover nan=back`): from the last good checkpoint, with the data to skip."""

from __future__ import annotations

import pytest

from spotguard.hooks.arguments import settings
from spotguard.hooks.ipc.failure_classes import SKIP_STEPS
from spotguard.providers.errors import UsageError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.store import FakeStore
from tests.fakes.training import guarded, small, step_on
from tests.fakes.two_guards import on_all, two_guards

pytestmark = pytest.mark.torch

BAD = float("nan")


def lives(store: BlobStore, *saves: tuple[int, float]) -> tuple[int, int]:
    """Restore, and save at steps with these losses behind them; return the step of the restore, and the steps to skip."""
    job = small()
    with guarded(store, job.values) as guard:
        began = done = guard.restore()
        skip = guard.skip_steps
        for step, loss in saves:
            for number in range(done, step):
                guard.watch_loss(loss)
                step_on(guard, job, number)
            done = step
            guard.save()
    return began, skip


def test_it_begins_at_the_last_checkpoint_that_is_not_suspect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    lives(store, (3, 1.0), (5, BAD))
    assert lives(store) == (5, 0)
    monkeypatch.setenv(SKIP_STEPS, "run:7")
    assert lives(store) == (3, 4)
    assert "guard.skip_steps is 4, for the script to skip that data" in caplog.text


def test_a_suspect_checkpoint_of_the_same_step_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    lives(store, (3, 1.0), (5, 1.0))
    job = small()
    with guarded(store, job.values) as guard:
        done = guard.restore(step=3)
        for number in range(done, 5):
            guard.watch_loss(BAD)
            step_on(guard, job, number)
        guard.save()
    monkeypatch.setenv(SKIP_STEPS, "run:7")
    with guarded(store, small().values) as guard:
        assert (guard.restore(), guard.skip_steps) == (5, 2)
        assert guard._position().suspect == ""


def test_if_all_are_suspect_the_newest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    lives(store, (3, BAD), (5, BAD))
    monkeypatch.setenv(SKIP_STEPS, "run:7")
    assert lives(store) == (5, 2)


def test_a_damaged_good_one_gives_way_to_an_older_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    lives(store, (3, 1.0), (5, 1.0), (6, BAD))
    for key in [each for each in store.objects if "/000000005-" in each and "safetensors" in each]:
        store.objects[key] = bytes(len(store.objects[key]))
    monkeypatch.setenv(SKIP_STEPS, "run:7")
    assert lives(store) == (3, 4)


def test_beyond_the_data_and_in_another_run_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts its ranks again with the same variables, and a command may train one run after another."""
    store = FakeStore()
    lives(store, (8, 1.0))
    monkeypatch.setenv(SKIP_STEPS, "run:7")
    assert lives(store) == (8, 0)
    monkeypatch.setenv(SKIP_STEPS, "pretraining:12")
    assert lives(store) == (8, 0)


@pytest.mark.parametrize("text", ["7", "run:", ":7", "run:-1", "run:7.5", "run:" + "1" * 20])
def test_text_that_is_no_run_and_step_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_STEPS, text)
    with (
        pytest.raises(UsageError, match="is not a run and a step: unset it"),
        guarded(FakeStore(), small().values),
    ):
        pass


def test_ranks_go_back_together_although_one_agent_alone_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other machine's agent has seen a lost peer only."""
    store = FakeStore()
    with two_guards([store, store]) as trainers:

        def saves(rank: int) -> None:
            for loss in (1.0, BAD):
                trainers[rank].guard.watch_loss(loss)
                trainers[rank].step()
                trainers[rank].guard.save()

        on_all(saves)
    told = iter((5, 0))
    monkeypatch.setattr(settings, "skipped_until", lambda run_id: next(told))
    with two_guards([store, store]) as trainers:
        assert [(each.guard.view.completed(), each.guard.skip_steps) for each in trainers] == [(1, 4)] * 2
