"""The guard and the losses that it is given: what a run keeps, what a restart is told, and what training notices of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import list_checkpoints
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.control.losses.detector import QUIET
from spotguard.hooks.guard import Guard
from spotguard.providers.errors import UsageError
from spotguard.testing import preempt
from tests.fakes.training import Job, finished, guarded, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

BAD = math.nan


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")


def on(guard: Guard, job: Job, numbers: Iterable[int], loss: float) -> None:
    """Train these steps with this loss."""
    for number in numbers:
        job.step(number)
        guard.step(loss=loss)


def there(store: WatchedStore) -> dict[int, bool]:
    """The steps of the complete checkpoints, oldest first, and whether each is suspect, by its marker and by its manifests."""
    found = {each.name.step: bool(each.suspect) for each in reversed(list_checkpoints(store, "run"))}
    deep = {
        each.name.step: bool(each.suspect) for each in reversed(list_checkpoints(store, "run", deep=True))
    }
    assert found == deep
    return found


def test_however_long_the_losses_are_bad_good_checkpoints_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--keep 2`: two good ones, and of the suspect ones the newest two, until as many good ones are newer."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "2")
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        at = guard.restore()
        for _ in range(3):
            on(guard, job, range(at, at := at + 2), 1.0)
            guard.save()
        assert there(store) == {4: False, 6: False}
        for saves in range(1, 11):
            on(guard, job, range(at, at := at + 2), BAD)
            assert guard.save().suspect == "the loss is nan since step 7"
            newest = {at - 2: True, at: True} if saves > 1 else {at: True}
            assert there(store) == {4: False, 6: False, **newest}
        on(guard, job, range(at, at := at + QUIET - 1), 1.0)
        guard.save()
        assert there(store) == {4: False, 6: False, 26: True, at: True}
        on(guard, job, range(at, at := at + 1), 1.0)
        assert guard.save().suspect == ""
        assert there(store) == {6: False, at: False}


def test_a_notice_in_the_middle_of_bad_losses_is_saved_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        on(guard, job, range(3), BAD)
        preempt(guard, seconds=30)
        with pytest.raises(Preempted):
            on(guard, job, range(3, 5), BAD)
    assert there(store) == {3: True}
    assert "step 3 is committed" in caplog.text
    assert "; suspect: the loss is nan since step 1\n" in caplog.text


def test_a_restart_takes_a_suspect_checkpoint_warns_and_trusts_its_next_ones_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where no loss is given any more."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        on(guard, job, range(2), BAD)
        guard.save()
    caplog.clear()
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 2
        assert (
            "step 2 is restored although it is suspect: the loss is nan since step 1. If its losses stay bad, go back to a "
            f"checkpoint that is not: `spotguard ls {store.url} --run-id run` lists them, guard.restore(step=…) loads one [SG421]"
        ) in caplog.text
        step_on(guard, job, 2)
        assert guard.save().suspect == "the loss is nan since step 1"
        step_on(guard, job, *range(3, 2 + QUIET))
        assert guard.save().suspect == ""


def test_a_suspect_checkpoint_that_a_person_asks_for_is_trusted() -> None:
    """To ask for it is to have looked at it."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        on(guard, job, range(2), BAD)
        guard.save()
        guard.restore(step=2)
        step_on(guard, job, 2)
        assert guard.save().suspect == ""


def test_going_back_leaves_the_suspicion_behind(tmp_path: Path) -> None:
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        on(guard, job, range(2), 1.0)
        guard.save()
        on(guard, job, range(2, 4), BAD)
        assert guard._position().suspect == "the loss is nan since step 3"
        assert guard._position().loss == "nan"
        assert guard.restore(step=2) == 2
        assert (guard._position().suspect, guard._position().loss) == ("", "")
        assert guard._position().suspect_steps == 2
        on(guard, job, range(2, 4), 1.0)
        assert guard.save().suspect == ""


def test_a_wrong_loss_is_refused_before_the_boundary_and_training_can_go_on() -> None:
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        job.step(0)
        with pytest.raises(UsageError, match="loss is str 'high'"):
            guard.step(loss="high")
        assert guard.in_step
        guard.step(loss=1.0)
        assert guard.save().step == 1


def test_a_loop_over_steps_has_its_own_way() -> None:
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        for number in guard.steps(3):
            job.step(number)
            guard.watch_loss(BAD if number == 1 else 1.0)
        assert guard.save().suspect == "the loss is nan since step 2"
    guard.watch_loss("anything: the guard is closed")
    guard.step(loss="as well")


def test_training_with_losses_is_bit_for_bit_as_without(tmp_path: Path) -> None:
    """Over a restart, too."""
    job = small()
    with guarded(tmp_path, job.values) as guard:
        guard.restore()
        on(guard, job, range(3), BAD)
        guard.save()
    assert finished(tmp_path, small, 6) == (3, trajectory(small, 6)[6])
