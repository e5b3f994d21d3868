"""At the notice only bytes move: the plan of a save is there before the first one."""

from __future__ import annotations

import logging
import threading

import pytest

from spotguard.hooks.commit.plan import partitioner
from spotguard.hooks.ipc import protocol
from spotguard.hooks.state.state import State
from tests.fakes.noticed import notice, trained
from tests.fakes.training import different, restored, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE, WatchedStore

pytestmark = pytest.mark.torch


def test_a_notice_finds_the_save_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that has settled, nothing is planned on the way: in pure Python, beside a busy training thread, that
    would take longer than the bytes of a small model."""
    planned: list[object] = []
    ready = threading.Event()

    def plan(items: object, rank: int, sizes: object) -> object:
        planned.append(sizes)
        ready.set()
        return partitioner.plan_shares(items, rank, sizes)  # type: ignore[arg-type]

    monkeypatch.setattr("spotguard.hooks.commit.plan.write_plan.plan_shares", plan)
    store = WatchedStore()
    with trained(store, steps=5) as (guard, job, heard):
        assert ready.wait(PATIENCE)
        for step in (5, 6):  # training goes on: the rehearsal has opened its gate
            step_on(guard, job, step)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).step == 7
        assert len(planned) == 1
    step, state = restored(store, small)
    assert step == 7
    assert different(state, trajectory(small, 7)[7]) == []


def test_a_rehearsal_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it count as a checkpoint, nor has it anything to say."""
    caplog.set_level(logging.WARNING, "spotguard")  # below it the run says where it begins
    store = WatchedStore()
    with trained(store, steps=8) as (guard, _, _heard):
        assert guard._position().checkpoint_step == -1
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}
    assert caplog.text == ""


def test_after_a_drill_the_next_notice_is_made_ready_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its save may have shown that more threads do better: theirs are not made at the notice."""
    store = WatchedStore()
    with trained(store, steps=6) as (guard, job, heard):
        first, again = threading.Event(), threading.Event()
        guard._saver.in_turn(first.set)  # behind the plan that is made before any notice
        assert first.wait(PATIENCE)
        rehearse = guard._checkpointer.rehearse

        def rehearsed(state: State) -> None:
            rehearse(state)
            again.set()

        monkeypatch.setattr(guard._checkpointer, "rehearse", rehearsed)
        guard._agent.hear(notice("n1", drill=True))
        heard.wait(protocol.Committed)
        assert not again.is_set()
        guard._agent.hear(protocol.Resume("n1"))
        assert again.wait(PATIENCE)
        step_on(guard, job, 6)
        guard._agent.hear(notice("n2"))
        assert heard.wait(protocol.Committed, 2).step == 7
