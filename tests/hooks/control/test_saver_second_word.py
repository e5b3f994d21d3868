"""A second word about a notice: deadlines that move, withdrawals, drills, and training that goes on bit for bit."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.request import SaveRequest
from spotguard.providers.errors import FullError, SpotguardError
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import go_on, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import restored, small, wait_open
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object

pytestmark = pytest.mark.torch


def test_a_second_notice_moves_the_deadline_of_the_save_under_way() -> None:
    """Two ids, one save, the earlier deadline."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, _, heard):
        store.hold(is_object)
        guard._agent.hear(notice("n1", 60))
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice("n2", 10))
        clock.advance(20)
        store.let_go()
        failed = heard.wait(protocol.Failed, 2)
        assert {message.id for message in heard.of(protocol.Failed)} == {"n1", "n2"}
        assert "out of time" in failed.reason
    assert store.kinds()["manifests"] == 0


def test_a_second_notice_is_answered_after_the_commit() -> None:
    """It learns at once that the step is committed."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        guard._agent.hear(notice("n1"))
        heard.wait(protocol.Committed)
        guard._agent.hear(notice("n2"))
        heard.wait(protocol.Committed, 3)
        assert {message.id for message in heard.of(protocol.Committed)} == {"n1", "n2"}
    assert store.kinds()["manifests"] == 1


def test_a_notice_that_comes_while_an_outcome_is_reported_hears_its_own_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its save begins then, and the earlier one's failure is no word of it."""
    store = WatchedStore()
    store.parallel = 1  # no other object is on its way
    with trained(store) as (guard, _, heard):

        def comes(record: logging.LogRecord) -> bool:
            if record.getMessage().startswith("nothing new is committed"):
                guard._agent.hear(notice("n2"))
            return True

        caplog.handler.addFilter(comes)
        store.calls.clear()
        store.faults = [Fault(0, verbs=("put",), error=lambda: FullError("no"))]
        guard._agent.hear(notice("n1"))
        heard.wait(protocol.Committed, 2)
        assert "n2" in {message.id for message in heard.of(protocol.Committed)}
        assert [message.id for message in heard.of(protocol.Failed)] == ["n1"]


@pytest.mark.parametrize("when", ["during", "after"])
def test_a_withdrawn_notice_lets_training_go_on_bit_for_bit(when: str) -> None:
    """Before the commit nothing is left of the save; after it the checkpoint stays; training never notices."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        if when == "during":
            store.hold(is_object)
        guard._agent.hear(notice())
        if when == "during":
            assert store.reached.wait(PATIENCE)
        else:
            heard.wait(protocol.Committed)
        guard._agent.hear(protocol.Withdrawn("n1"))
        wait_open(guard)
        store.let_go()
        go_on(guard, job)
        guard.save()  # behind whatever the saver still had to do
        assert heard.of(protocol.Failed) == []
    assert store.kinds()["manifests"] == store.kinds()["markers"] == (1 if when == "during" else 2)


def test_a_notice_right_behind_a_withdrawal_has_its_own_save() -> None:
    """While the first save is still winding down: the second is not taken for a part of it."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.hold(is_object)
        guard._agent.hear(notice("n1"))
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(protocol.Withdrawn("n1"))
        guard._agent.hear(notice("n2"))
        store.let_go()
        assert heard.wait(protocol.Committed).id == "n2"
        guard._agent.hear(protocol.Leave("n2", 75))
        with pytest.raises(Preempted):
            job.step(2)
    assert store.kinds()["manifests"] == 1
    assert restored(store, small)[0] == 2


def test_a_notice_that_comes_as_a_stalls_save_gives_up_has_its_own_save() -> None:
    """Training moves again, and reaches its boundary within the notice's time. A failure that was the stall's is reported to nobody."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard), ThreadPoolExecutor(1) as pool:
        job.step(2)  # no boundary comes for the stall's save
        ended, given_up = guard._saver._ended, threading.Event()

        def at_that_moment(job: SaveRequest, error: SpotguardError) -> None:
            guard._saver._ended = ended  # type: ignore[method-assign]
            guard._agent.hear(notice("n1"))
            given_up.set()
            ended(job, error)

        def outcome() -> Any:
            try:
                return heard.wait(protocol.Committed)
            finally:
                guard._agent.hear(protocol.Leave("n1", 75))

        guard._saver._ended = at_that_moment  # type: ignore[method-assign]
        guard._agent.hear(protocol.Preempt("s1", 1e6, 0.0, protocol.STALL, "spotguard"))
        while not given_up.wait(0.01):
            clock.advance(11)
            guard._gate.wake()
        waiting = pool.submit(outcome)
        with pytest.raises(Preempted):
            guard.step()
        assert waiting.result(PATIENCE).step == 3
        assert heard.of(protocol.Failed) == []
    assert restored(store, small)[0] == 3


def test_one_of_two_notices_withdrawn_leaves_the_other() -> None:
    """Training goes on when the last is gone."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._agent.hear(notice("n1"))
        guard._agent.hear(notice("n2"))
        heard.wait(protocol.Committed)
        guard._agent.hear(protocol.Withdrawn("n1"))
        guard._agent.hear(protocol.Withdrawn("unknown"))
        assert guard._gate.place.shut is not Shut.OPEN
        guard._agent.hear(protocol.Withdrawn("n2"))
        wait_open(guard)
        go_on(guard, job)


def test_a_drill_saves_and_training_goes_on() -> None:
    """A real save of the whole state, and every bit after it is as without it."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._agent.hear(notice("d1", drill=True))
        assert heard.wait(protocol.Committed).step == 2
        guard._agent.hear(protocol.Resume("d1"))
        wait_open(guard)
        go_on(guard, job)
    assert restored(store, small)[0] == 2


def test_a_deadline_that_is_outlived_lets_training_go_on() -> None:
    """Nobody ended this process and the machine is still here: a false alarm, with or without a commit."""
    for fails in (False, True):
        store, clock = WatchedStore(), ManualClock()
        with trained(store, clock=clock) as (guard, job, heard):
            store.hold(is_object)
            guard._agent.hear(notice("n1", 10))
            assert store.reached.wait(PATIENCE)
            if fails:
                clock.advance(100)
                store.let_go()
                heard.wait(protocol.Failed)
            else:
                store.let_go()
                heard.wait(protocol.Committed)
                clock.advance(100)
                guard._agent.hear(notice("n1", 0))  # a word that wakes the saver: it looks at the clock again
            wait_open(guard)
            go_on(guard, job)
