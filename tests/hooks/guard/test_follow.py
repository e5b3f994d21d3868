"""A follower of a guard gets its restores and commits, on a queue."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.testing import preempt
from tests.fakes.training import PATIENCE, guarded, small, step_on

pytestmark = pytest.mark.torch


def test_a_follower_gets_each_restore_and_commit_with_its_notice(tmp_path: Path) -> None:
    early: SimpleQueue[Any] = SimpleQueue()
    late: SimpleQueue[Any] = SimpleQueue()
    job = small()
    with guarded(tmp_path, job.values) as guard:
        guard.view.follow(early)
        assert guard.restore() == 0
        guard.view.follow(late)
        assert early.get(timeout=PATIENCE) == late.get(timeout=PATIENCE) == (0, None, None)
        step_on(guard, job, 0, 1)
        by_hand = guard.save()
        assert early.get(timeout=PATIENCE) == late.get(timeout=PATIENCE) == (2, by_hand, None)
        step_on(guard, job, 2)
        assert guard._saver.background()
        step, background, notice = early.get(timeout=PATIENCE)
        assert (step, background.step, notice) == (3, 3, None)
        assert background.blocked > 0
        step_on(guard, job, 3)
        preempt(guard)
        with pytest.raises(Preempted):
            step_on(guard, job, 4)
        step, saved, notice = early.get(timeout=PATIENCE)
        assert (step, saved.step, saved.level) == (4, 4, "full")
        assert (notice.kind, notice.source) == ("test", "spotguard.testing")
        assert 0 < notice.seen <= saved.at
    assert early.empty()
    job = small()
    with guarded(tmp_path, job.values) as guard:
        guard.view.follow(again := SimpleQueue[Any]())
        assert guard.restore() == 4
        assert again.get(timeout=PATIENCE) == (4, None, None)


def test_a_save_for_a_notice_that_fails_announces_no_commit(tmp_path: Path) -> None:
    events: SimpleQueue[Any] = SimpleQueue()
    job = small()
    with guarded(tmp_path, job.values) as guard:
        guard.view.follow(events)
        preempt(guard)  # training has not begun: there is nothing to save
        with guard._saver._lock:
            urgent = guard._saver._urgent
        if urgent is not None:
            assert urgent.done.wait(PATIENCE)
    assert events.empty()
