"""The history that a guard writes: the seconds of its steps, the cost of its checkpoints, and their interval, on a clock of the test."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import pytest

from spotguard.hooks.checkpoint.catalog import folders_of
from spotguard.hooks.checkpoint.format.codec import decode_marker
from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc.failures.phase_times import LEAST
from spotguard.providers.stores.base import Sent
from spotguard.report.reading import read_run
from spotguard.testing import preempt
from tests.fakes.clock import ManualClock
from tests.fakes.training import PATIENCE, Job, guarded, small, step_on
from tests.fakes.watched_store import WatchedStore, is_marker, is_object

pytestmark = pytest.mark.torch


class SlowMarkerStore(WatchedStore):
    """A store whose markers take the seconds that the test sets."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.seconds = clock, 0.0

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        super().put(key, data, timeout=timeout, crc32=crc32, sent=sent)
        if is_marker(key):
            self.clock.advance(self.seconds)

    def histories(self) -> list[Mapping[str, Any]]:
        """The histories that the checkpoints carry, the newest first."""
        folders = folders_of("run", [*self.list("run/checkpoints/")])
        keys = [each.prefix + MARKER for each in folders]
        return [decode_marker(self.get(key), key).history for key in keys]


def copy_takes(guard: Guard, clock: ManualClock, seconds: float) -> None:
    """Have each copy in host memory take this long."""
    snapshot = guard._checkpointer._copies.snapshot
    copy = snapshot.take

    def take(*given: Any) -> Any:
        clock.advance(seconds)
        return copy(*given)

    snapshot.take = take  # type: ignore[assignment,method-assign]


def steps(guard: Guard, job: Job, clock: ManualClock, seconds: float, count: int = 1) -> None:
    for _ in range(count):
        clock.advance(seconds)
        step_on(guard, job, guard.view.completed())


def test_its_times_are_those_of_the_clock_in_checkpoints_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, a save costs its 8 s. One beside training costs its copy of 1.5 s, and three of the five seconds of each step in the
    10 s of its upload.
    """
    monkeypatch.setenv("SPOTGUARD_EVERY", "50")
    clock, saves = ManualClock(now=1000.0, wall=5000.0), SimpleQueue[Any]()
    store, job = SlowMarkerStore(clock), small()
    store.time = clock.time
    with guarded(store, job.values, clock=clock) as guard:
        guard.view.follow(saves)
        guard.restore()
        steps(guard, job, clock, 30.0)  # it may compile
        steps(guard, job, clock, 2.0, 5)
        store.seconds = 8.0
        guard.save()
        store.seconds = 0.0
        (first,) = store.histories()
        steps(guard, job, clock, 2.0, 24)
        copy_takes(guard, clock, 1.5)
        store.hold(is_object)
        steps(guard, job, clock, 2.0)  # fifty seconds after that save
        assert store.reached.wait(PATIENCE)
        steps(guard, job, clock, 5.0, 2)
        store.let_go()
        while (saved := saves.get(timeout=PATIENCE)[1]) is None or saved.step != 31:
            pass
        guard.save()
        third, second, _ = store.histories()
        steps(guard, job, clock, 2.0)
        preempt(guard)
        with pytest.raises(Preempted):
            steps(guard, job, clock, 2.0)
    assert (saved.blocked, saved.seconds) == (1.5, 11.5)
    whole = {"began": 5000.0, "first": 0, "step_seconds": 2.0, "interval": 50.0, "phases": {}, "earlier": []}
    assert first == {**whole, "saves": 0, "cost": 0.0, "periodic": None}
    assert second == {**whole, "saves": 1, "cost": 8.0, "periodic": 6}
    assert third == {**whole, "saves": 2, "cost": 15.5, "periodic": 31}
    (event,) = read_run(store, "run", clock.time()).attempts[0].events
    del whole["earlier"], whole["phases"]
    assert event.history == {**whole, "saves": 3, "cost": 15.5, "periodic": 33, "completed": 34}


def test_the_interval_that_a_checkpoint_changes_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time for uploads: 30 s of them need 300 s."""
    monkeypatch.delenv("SPOTGUARD_EVERY", raising=False)
    clock = ManualClock()
    store, job = SlowMarkerStore(clock), small()
    with guarded(store, job.values, clock=clock) as guard:
        guard.restore()
        store.seconds = 30.0
        for _ in range(2):
            steps(guard, job, clock, 1.0)
            guard.save()
    assert [each["interval"] for each in store.histories()] == [300.0, 60.0]
    assert [each["cost"] for each in store.histories()] == [30.0, 0.0]


def test_a_later_attempt_knows_the_pauses_of_an_earlier_one() -> None:
    """Its limits for stalls need no twenty steps of its own."""
    store, clock, limits = WatchedStore(), ManualClock(), list[float]()
    for count in (25, 8):
        job = small()
        with guarded(store, job.values, clock=clock) as guard:
            guard.restore()
            for _ in range(count):
                steps(guard, job, clock, 2.0)
                limits.append(guard._position().limit)
            guard.save()
    assert limits[:19] == [-1.0] * 19
    assert limits[25:] == [-1.0] * 5 + [LEAST] * 3
