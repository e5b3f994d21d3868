"""The guard and the losses that it is given: what a run keeps, what a restart is told, and what training notices of it."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.control.losses.detector import QUIET
from spotguard.hooks.control.losses.metrics import ScriptMetrics
from spotguard.hooks.control.losses.watch import LossWatch
from spotguard.hooks.guard import Guard
from spotguard.integrations.binding import StepLoss
from spotguard.providers.errors import UsageError
from spotguard.testing import preempt
from tests.fakes.device import Device
from tests.fakes.training import Job, finished, guarded, small, step_on, trajectory
from tests.fakes.two_guards import Trainer, on_all, two_guards
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


def test_good_checkpoints_outlive_bad_losses_before_and_after_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However training is cut into lives: the newest good one stays, and no later one is taken for good."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "2")
    for seed in range(4):
        draw = random.Random(seed)
        store, job, lives = WatchedStore(), small(), draw.randint(2, 4)
        with guarded(store, job.values) as guard:
            at = guard.restore()
            for _ in range(draw.randint(1, 3)):
                on(guard, job, range(at, at := at + draw.randint(1, 3)), 1.0)
                guard.save()
            good = at
            for life in range(lives):
                if life:
                    at = guard.restore()
                for _ in range(draw.randint(1, 4)):
                    on(guard, job, range(at, at := at + draw.randint(1, 2 * QUIET)), BAD)
                    assert guard.save().suspect == f"the loss is nan since step {good + 1}"
        found = there(store)
        assert max(step for step, suspect in found.items() if not suspect) == good
        assert all(suspect for step, suspect in found.items() if step > good)


def test_spikes_mark_no_checkpoint_and_push_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy training that rises for ever keeps its checkpoints and milestones as without losses."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1+50")
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        at = guard.restore()
        for loss in (1.0, 1.0, 9.0, 9.0):
            on(guard, job, range(at, at := at + 50), loss)
            assert guard.save().suspect == ""
            high = guard._position().high_loss
            assert high == ("the loss is 9 since step 101, and was 1" if at == 150 else "")
    assert there(store) == {50: False, 100: False, 150: False, 200: False}


def test_losses_that_are_given_rarely_mark_the_checkpoints_between() -> None:
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        on(guard, job, range(1), 1.0)
        step_on(guard, job, *range(1, 8))
        assert guard.save().suspect == ""
        on(guard, job, range(8, 9), BAD)
        assert [bool(guard._losses.why(step)) for step in range(1, 10)] == [False] + [True] * 8


def test_in_a_job_the_suspicion_is_of_all_ranks_and_keeps_its_text_over_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One rank's losses mark the checkpoint of both: in what `save` returns on each, in the record, and in the log."""
    caplog.set_level(logging.INFO)
    store = WatchedStore()
    why = "the loss is nan since step 1 on rank 1"
    for life in range(3):
        with two_guards([store, store]) as trainers:

            def go(rank: int, trainers: list[Trainer] = trainers, life: int = life) -> str:
                if not life:
                    trainers[rank].guard.watch_loss((1.0, BAD)[rank])
                trainers[rank].step()
                return trainers[rank].guard.save().suspect

            assert on_all(go) == [why, why]
            if life < 2:
                continue
            trainers[0].guard.preempt(20)

            def to_the_end(rank: int, trainers: list[Trainer] = trainers) -> None:
                with suppress(Preempted):
                    for _ in range(20):
                        trainers[rank].step()

            on_all(to_the_end)
    assert set(there(store).values()) == {True}
    assert {each.suspect for each in list_checkpoints(store, "run")} == {why}
    (record,) = [json.loads(store.get(each.key)) for each in store.list("run/outcomes/")]
    assert (record["committed"], record["suspect"]) == (True, why)
    assert f"; suspect: {why}\n" in caplog.text


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
        assert guard._position().bad_loss_steps == 2
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


def test_a_metric_of_the_script_reaches_the_agent_until_a_restore() -> None:
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        guard.watch_metric("validation_loss", 2.5)
        with pytest.raises(UsageError, match="the name 'Val Loss'"):
            guard.watch_metric("Val Loss", 2.5)
        assert guard._position().metrics == {"validation_loss": "2.5"}
        step_on(guard, job, 0)
        guard.save()
        guard.restore()
        assert guard._position().metrics == {}
    guard.watch_metric("anything", "the guard is closed")


def test_a_boundary_reads_a_metric_that_a_device_has_computed() -> None:
    """Without another call: an evaluation may be the last one for an hour."""
    store, job, device = WatchedStore(), small(), Device()
    with guarded(store, job.values) as guard:
        guard.restore()
        guard._parts.metrics = guard._metrics = ScriptMetrics(record=device.record, at_once=False)
        guard.watch_metric("validation_loss", torch.tensor(2.5))
        step_on(guard, job, 0)
        assert guard._position().metrics == {}
        device.reached = 1
        step_on(guard, job, 1)
        assert guard._position().metrics == {"validation_loss": "2.5"}


def test_a_boundary_reads_a_loss_that_a_device_has_computed() -> None:
    """Without another loss: the next one may come many steps and checkpoints later."""
    store, job, device = WatchedStore(), small(), Device()
    with guarded(store, job.values) as guard:
        guard.restore()
        guard._parts.losses = guard._losses = LossWatch(0, 1, "ls", record=device.record, at_once=False)
        guard.watch_loss(torch.tensor(BAD))
        step_on(guard, job, 0)
        assert guard._position().bad_loss_steps == 0
        device.reached = 1
        step_on(guard, job, 1)
        assert guard._position().bad_loss_steps == 1
        assert guard._position().suspect == "the loss is nan since step 1"


@pytest.mark.parametrize("way", ["number", "tensor", "adapter"])
def test_training_with_losses_is_bit_for_bit_as_without(way: str, tmp_path: Path) -> None:
    """Over a restart, too; and with the tensor that training computes its gradients from."""
    job = small()
    with guarded(tmp_path, job.values) as guard:
        guard.restore()
        for number in range(3):
            given: Any = BAD
            if way != "number":
                given = next(iter(job.values["model"].parameters())).square().sum()
            if way == "adapter":
                of_step = StepLoss(mean=True)
                for _ in range(3):
                    of_step.add(given)
                given = of_step.take()
            job.step(number)
            guard.step(loss=given)
        guard.save()
    assert finished(tmp_path, small, 6) == (3, trajectory(small, 6)[6])
