"""The end of a save: what counts as committed, and what a window is not spent on."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from spotguard.hooks.commit.own_manifest import MARKING
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import DeniedError, FullError
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import different, guarded, restored, small, step_on, trajectory, wait_shut
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_manifest, is_marker, is_object

pytestmark = pytest.mark.torch


def restores(store: WatchedStore, step: int) -> None:
    """Fresh objects get this step, bit for bit."""
    found, state = restored(store, small)
    assert found == step
    assert different(state, trajectory(small, step)[step]) == []


# --- between the manifest and the marker -----------------------------------------------------------------------


@pytest.mark.parametrize("also", ["marker", "outcome"])
def test_a_deadline_behind_the_manifest_finds_it_committed(
    also: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The store hangs from the marker on. A restore would take this step, so the agent is told that it may."""
    caplog.set_level(logging.DEBUG, "spotguard")
    store, clock, last = WatchedStore(), ManualClock(), threading.Event()

    def hangs(key: str) -> bool:
        if also == "outcome" and "/outcomes/" in key:
            last.set()
            return True
        return is_marker(key)

    with trained(store, clock=clock) as (guard, _, heard):
        store.hold(hangs)
        guard._agent.hear(notice("n1", 10, reserve=3))
        assert store.reached.wait(PATIENCE)
        clock.advance(8)
        if also == "outcome":
            assert last.wait(PATIENCE)
            # Or the second would go by before it is waited for.
            assert clock.wait_for_waiters(timeout=PATIENCE)
            clock.advance(1)
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("n1", 2)
        assert heard.of(protocol.Failed) == []
        assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 0}
        assert "step 2 is committed, but its marker could not be uploaded: out of time" in caplog.text
        assert guard._position().checkpoint_step == 2
        if also == "marker":
            outcome = json.loads(next(data for key, data in store.objects.items() if "/outcomes/" in key))
            assert (outcome["committed"], outcome["step"]) == (True, 2)
        restores(store, 2)
        store.let_go()


def test_a_marker_that_is_refused_fails_no_save() -> None:
    """By hand, at a notice, or in the background: it is a shortcut."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.faults = [Fault(n, verbs=("put",), error=lambda: DeniedError("no")) for n in (3, 7, 11)]
        store.calls.clear()
        assert guard.save().step == 2
        step_on(guard, job, 2)
        guard._saver.background()
        assert heard.wait(protocol.Committed, 2).step == 3
        step_on(guard, job, 3)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed, 3).step == 4
    assert store.kinds() == {"objects": 6, "manifests": 3, "markers": 0}
    restores(store, 4)


def test_a_notice_at_the_marker_of_this_very_step_has_nothing_to_save() -> None:
    """The background save that it calls off is whole already."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, _, heard):
        store.hold(is_marker)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        clock.advance(MARKING)
        committed = heard.wait(protocol.Committed, 2)
        assert (committed.id, committed.step) == ("n1", 2)
        store.let_go()
    assert store.kinds()["manifests"] == 1
    restores(store, 2)


def test_a_withdrawal_at_the_marker_keeps_what_is_whole() -> None:
    """It is no news of the notice any more, and a checkpoint all the same."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.hold(is_marker)
        guard._agent.hear(notice())
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(protocol.Withdrawn("n1"))
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("", 2)
        store.let_go()
        step_on(guard, job, 2)
    restores(store, 2)


# --- at the manifest -------------------------------------------------------------------------------------------


def test_a_manifest_that_hangs_is_no_commit_and_may_become_one() -> None:
    """The deadline is kept, whatever the store does; the reason says what may still be."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_manifest)
        guard._agent.hear(notice("n1", 10, reserve=3))
        assert store.reached.wait(PATIENCE)
        clock.advance(8)
        failed = heard.wait(protocol.Failed)
        assert failed.last_step == 2
        assert failed.reason == (
            "out of time; its manifest was being uploaded: if it arrives, a restore uses step 3"
        )
        assert store.kinds() == {"objects": 4, "manifests": 1, "markers": 1}
        restores(store, 2)
        store.let_go()
        store.wait_for(lambda keys: sum(map(is_manifest, keys)) == 2)
    restores(store, 3)


def test_a_notice_does_not_wait_for_a_manifest_that_hangs() -> None:
    """The background save is left behind with its thread; the notice's own save has another."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.hold(lambda key: is_manifest(key) and "/000000002-" in key)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        step_on(guard, job, 2)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).step == 3
        assert [name[:9] for name in store.manifests()] == ["000000003"]
        store.let_go()
    restores(store, 3)


def test_a_manifest_that_finds_no_room_gives_back_what_was_written() -> None:
    """The objects before it are of no use to anybody, and may be what fills the disk."""
    store = WatchedStore()
    with trained(store) as (guard, _, _):
        store.calls.clear()
        store.faults = [Fault(1, verbs=("put",), error=lambda: FullError("no room"))]
        with pytest.raises(FullError):
            guard.save()
        assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


# --- a checkpoint that the agent asks for ----------------------------------------------------------------------


def test_one_that_is_asked_for_during_another_is_made_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one under way is older than the question, and the agent asks once: at the next boundary it begins."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "3600")
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        first = guard._saver._running
        assert first is not None
        guard._agent.hear(protocol.CheckpointNow("the machine goes in 5 minutes", going=True))
        step_on(guard, job, 2)
        store.let_go()
        assert first.done.wait(PATIENCE)
        step_on(guard, job, 3)
        assert heard.wait(protocol.Committed, 2).step == 4
        assert guard._schedule.due > clock.monotonic()
    restores(store, 4)


# --- what a window is for --------------------------------------------------------------------------------------


def test_a_notice_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before its commit nor after it: old checkpoints go with the next save that has the time."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.calls.clear()
        guard._agent.hear(notice("d1", drill=True))
        assert heard.wait(protocol.Committed, 2).step == 3
        guard._agent.hear(protocol.Resume("d1"))
        step_on(guard, job, 3)
        assert {verb for verb, _ in store.calls} == {"put"}
        assert store.kinds()["markers"] == 2
        assert guard.save().step == 4
        assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 1}


def test_a_notice_whose_save_fails_deletes_nothing() -> None:
    """What it wrote is an orphan that the next prune finds; to tidy up is nothing for a machine that goes."""
    for at in range(2):
        store = WatchedStore()
        with trained(store) as (guard, _, heard):
            store.calls.clear()
            full = [Fault(n, verbs=("put",), error=lambda: FullError("no room")) for n in range(at, 10)]
            store.faults = full
            guard._agent.hear(notice())
            assert heard.wait(protocol.Failed).reason == "no room"
            guard._agent.hear(protocol.Withdrawn("n1"))
        assert {verb for verb, _ in store.calls} == {"put"}


class Full(WatchedStore):
    """Has no room for a manifest while it is full."""

    full = False

    def put(self, key: str, *rest: Any, **options: Any) -> None:
        if self.full and is_manifest(key):
            raise FullError("no manifest")
        super().put(key, *rest, **options)


def test_leftovers_of_a_dead_attempt_go_with_the_next_commit() -> None:
    """Its last save never ended; the next start trains on, and has something newer in the store."""
    store = Full()
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.full = True
        guard._agent.hear(notice())
        assert heard.wait(protocol.Failed).last_step == 2
        orphans = {key for key in store.objects if "/000000003-0001-" in key}
        assert len(orphans) == 2
        store.full = False
        guard._agent.hear(protocol.Withdrawn("n1"))
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 2
        assert orphans <= store.objects.keys()
        step_on(guard, job, 2)
        guard.save()
        assert not orphans & store.objects.keys()
    restores(store, 3)


def test_a_notice_at_the_prune_of_another_save_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one request is spent on old checkpoints once it is there. The marker's silence has its objects looked at."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_marker)
        store.calls.clear()
        trainer = threading.Thread(target=guard._saver.background, name="trainer")
        trainer.start()
        trainer.join(PATIENCE)
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        clock.advance(MARKING)
        assert heard.wait(protocol.Committed, 3).id == "n1"
        own = "run/checkpoints/000000003-0001-0001/"
        assert all(verb == "put" or (verb == "list" and key.startswith(own)) for verb, key in store.calls)
        store.let_go()
    assert store.kinds()["manifests"] == 2


# --- a deadline that moves -------------------------------------------------------------------------------------


def test_an_earlier_deadline_ends_the_wait_for_a_boundary() -> None:
    """The agent kills at the new one: by then both notices are answered, though the step goes on and on."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        job.step(2)
        guard._agent.hear(notice("n1", 600.0))
        wait_shut(guard)
        guard._agent.hear(notice("n2", seconds=3.0, reserve=3.0))
        assert "training reached no guard.step()" in heard.wait(protocol.Failed, 2).reason
        assert {message.id for message in heard.of(protocol.Failed)} == {"n1", "n2"}
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}
