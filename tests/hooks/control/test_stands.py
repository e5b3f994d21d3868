"""A rank is gone, and what the others would save without it is in the store already, complete, though none has seen it so."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import scan
from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix, manifest_name
from spotguard.hooks.checkpoint.format.manifest import RankManifest
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.plan.partitioner import RankRoles
from spotguard.hooks.consensus.vote import Decision
from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.report import Report
from spotguard.hooks.control.saver import Saver
from spotguard.hooks.ipc.notice import PreemptionNotice
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveRequest, SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from tests.fakes.commit import put_manifest
from tests.fakes.store import FakeStore
from tests.hooks.ranks.gang import until

pytestmark = pytest.mark.torch

PATIENCE = 100.0
STEP = 7
#: The calls for a background checkpoint and for a notice, and what their checkpoints are called.
BESIDE, NOTICE = 5, 6
COMPLETE = CheckpointName(1, STEP, 2 * BESIDE)


class Left:
    """Rank 0 of two, of which the other one does not answer any more."""

    orphaned = False

    def __init__(self) -> None:
        self.failures: list[tuple[int, str]] = []

    def counts(self, epoch: int) -> bool:
        return True

    def decide(
        self,
        job: SaveRequest,
        step: int | None,
        left: Callable[[], float],
        over: Callable[[], bool],
        *,
        boundary: bool,
        parks: bool,
    ) -> Decision:
        there = (0, 1) if job.epoch == BESIDE else (0,)
        return Decision(job.epoch, step, "" if len(there) == 2 else "rank 1 of 2 has not answered", there)

    def agreed(self, job: SaveRequest, decision: Decision, step: int) -> SaveSpec:
        absent = frozenset({0, 1}) - {*decision.ranks}
        return SaveSpec(step, job.epoch, RankRoles(absent=absent), speaks=True, why=decision.why)

    def again(self, job: SaveRequest, why: str) -> None:
        raise AssertionError(why)

    def failed(self, job: SaveRequest, why: str) -> None:
        self.failures.append((job.epoch, why))

    def revote(self, job: SaveRequest) -> bool:
        return False

    def by_hand(self, step: int) -> None: ...

    def over(self, id: str, why: str) -> None: ...


class Heard(Report):
    """What became of the notice."""

    def __init__(self) -> None:
        super().__init__(
            lambda key, data, seconds: None,
            "run",
            lambda: 1,
            SystemClock(),
            lambda message, *, droppable=False: False,
            lambda notice: None,
            lambda notice, committed: None,
        )
        self.outcomes: queue.SimpleQueue[SavedCheckpoint | str] = queue.SimpleQueue()

    def progress(
        self, preemption: PreemptionNotice, phase: str, step: int, done: int, total: int
    ) -> None: ...

    def committed(self, preemption: PreemptionNotice, saved: SavedCheckpoint) -> None:
        self.outcomes.put(saved)

    def failed(self, preemption: PreemptionNotice, reason: str, last_step: int, *, lost: bool = True) -> None:
        self.outcomes.put(reason)

    def checkpointed(self, saved: SavedCheckpoint) -> None: ...


@contextmanager
def left_alone(store: FakeStore) -> Iterator[tuple[Saver, Left, Heard]]:
    """It has put its part of a background checkpoint, and waits for the other's manifest."""
    state = State({"notes": {"a": 1}}, lambda frame: None, rank=0, world=2)
    state.at_boundary()
    clock, gate, left, heard = SystemClock(), Gate(together=True), Left(), Heard()
    writer = Checkpointer(store, "run", 1, clock=clock, keep=Keep(2), rank=0, world=2, incarnation="nonce")
    saver = Saver(gate=gate, state=state, checkpointer=writer, clock=clock, listener=heard, coordinator=left)
    gate.begin_boundary()
    gate.arrive(STEP)
    saver.start()
    saver.ready = True
    try:
        saver.background(BESIDE)
        mine = checkpoint_prefix("run", COMPLETE) + manifest_name(0, 2)
        until(lambda: mine in store.objects)
        yield saver, left, heard
    finally:
        saver.close(PATIENCE)


def notice(saver: Saver, heard: Heard) -> SavedCheckpoint | str:
    now = SystemClock().monotonic()
    saver.emergency(PreemptionNotice(["n"], now + PATIENCE, now + PATIENCE, "aws", "terminate"), NOTICE)
    return heard.outcomes.get(timeout=PATIENCE)


def test_a_checkpoint_that_its_dead_rank_has_completed_stands() -> None:
    """Its manifest was the last thing that rank put: nothing is saved without it, and whoever waits here is told."""
    store = FakeStore()
    with left_alone(store) as (saver, left, heard):
        put_manifest(store, RankManifest("run", STEP, 1, COMPLETE.save, 1, 2, incarnation="nonce"))
        outcome = notice(saver, heard)
    assert isinstance(outcome, SavedCheckpoint), outcome
    stands = "no answer in time from rank 1, and the complete checkpoint of step 7 is as new"
    assert (outcome.step, outcome.level, outcome.why) == (STEP, "full", stands)
    assert outcome.url.endswith(f"{COMPLETE}/")
    assert left.failures == [(NOTICE, stands)]
    assert [folder.name for folder in scan(store, "run")] == [COMPLETE]


def test_one_that_it_has_not_completed_does_not(caplog: pytest.LogCaptureFixture) -> None:
    """The others' part of it is worth nothing. What is saved instead says in the log what it lacks."""
    caplog.set_level(logging.DEBUG, "spotguard")
    store = FakeStore()
    with left_alone(store) as (saver, left, heard):
        outcome = notice(saver, heard)
    assert isinstance(outcome, SavedCheckpoint), outcome
    assert (outcome.step, outcome.level, outcome.why) == (
        STEP,
        "partial-extras",
        "rank 1 of 2 has not answered",
    )
    assert left.failures == []
    assert "step 7 is committed without the extras of rank 1" in caplog.text
    assert [folder.name for folder in scan(store, "run")] == [CheckpointName(1, STEP, 2 * NOTICE), COMPLETE]
