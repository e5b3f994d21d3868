"""Saves that no notice asked for: they come by themselves or by hand, and one that fails stops nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spotguard.hooks.guard.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import DeniedError
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import TOTAL, go_on, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import Job, different, restored, small, step_on, trajectory, wait_shut
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object

pytestmark = pytest.mark.torch


def test_background_saves_come_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--every`: at the first boundary after the interval, and training is the same to the bit."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "10")
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        assert heard.of(protocol.Committed) == []
        clock.advance(11)
        step_on(guard, job, *range(2, TOTAL))
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step >= 3) == ("", True)
        assert different(job.bits(), trajectory(small, TOTAL)[TOTAL]) == []
    step, state = restored(store, small)
    assert step == committed.step
    assert different(state, trajectory(small, TOTAL)[step]) == []


def test_switched_off_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--every off`."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, _):
        clock.advance(10**6)
        go_on(guard, job)
    assert store.kinds()["manifests"] == 0


def fails_in_the_background(store: WatchedStore, guard: Guard, job: Job) -> None:
    """A background save whose first put is denied, until the position tells it."""
    store.calls.clear()
    store.faults = [Fault(0, verbs=("put",), error=lambda: DeniedError("read-only"))]
    guard._saver.background()
    go_on(guard, job)
    eventually(lambda: guard._position().failing == "read-only", "the position tells it")


def test_a_background_save_that_fails_stops_nothing_and_the_agent_is_told_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning, and training goes on. The next commit ends it."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        fails_in_the_background(store, guard, job)
        assert store.kinds()["manifests"] == 0
        store.faults = []
        guard.save()
        assert guard._position().failing == ""
    assert "background checkpoint failed, training continues: read-only" in caplog.text


def test_a_committed_drill_ends_failing_background_checkpoints() -> None:
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        fails_in_the_background(store, guard, job)
        store.faults = []
        guard._agent.hear(notice("n1", drill=True))
        heard.wait(protocol.Committed)
        assert guard._position().failing == ""


def test_without_enough_memory_no_copy_begins(caplog: pytest.LogCaptureFixture) -> None:
    """The host would swap, or kill the job: the warning says how to switch it off."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):

        def short(meminfo: Path = Path(), cgroups: Path = Path()) -> int:
            return 2**20

        guard._checkpointer._copies.snapshot.available = short
        guard._saver.background()
        go_on(guard, job)
    assert "--every off" in caplog.text
    assert store.kinds()["objects"] == 0


def test_a_state_without_checksums_is_saved_later_and_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host had no memory for them; at the next boundary training waits, and none are needed."""
    store = WatchedStore()

    def no_memory(*_: object) -> None:
        raise MemoryError("out of memory")

    with trained(store) as (guard, job, heard):
        monkeypatch.setattr(guard._state.audit, "_whole", no_memory)
        guard._saver.background()
        go_on(guard, job)
        assert heard.wait(protocol.Committed).step == 3
    assert "step 2 is not saved: no checksums were taken at its boundary" in caplog.text
    assert "make every change" not in caplog.text


def test_a_failing_save_by_hand_raises_and_the_next_works() -> None:
    """The last checkpoint is untouched, and the gate is open."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        first = guard.save()
        step_on(guard, job, 2)
        store.calls.clear()
        store.faults = [Fault(0, verbs=("put",), error=lambda: DeniedError("no"))]
        with pytest.raises(DeniedError):
            guard.save()
        assert store.kinds()["markers"] == 1
        store.faults = []
        second = guard.save()
        assert (first.step, second.step) == (2, 3)


def test_the_end_waits_for_an_upload_and_not_for_a_boundary() -> None:
    """A background save under way is finished at exit; one that waits for a step that never comes is not."""
    store = WatchedStore()
    with trained(store) as (guard, _, _):
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)

        def at_the_end() -> None:
            with guard._gate._changed:
                assert guard._gate._changed.wait_for(lambda: guard._saver._ending, PATIENCE)
            store.let_go()

        threading.Thread(target=at_the_end, name="end").start()
    assert store.kinds()["markers"] == 1
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        job.step(2)  # and the script ends in the middle of this step
        guard._saver.background()
        wait_shut(guard)
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}
