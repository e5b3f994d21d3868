"""One process restores again and again, each time all of it."""

from __future__ import annotations

import pytest

from spotguard import testing
from spotguard.hooks.control.ending.sigterm import Preempted
from tests.fakes.training import different, guarded, restored, small, step_on, train
from tests.hooks.restore.two_checkpoints import TOTAL, Made, Stores, made, stores

pytestmark = pytest.mark.torch
__all__ = ["made", "stores"]


def test_one_guard_restores_twice(made: Made, stores: Stores) -> None:
    """Right after the other, back and forth; each time all of it, with no thread left over."""
    objects, states, _ = made
    job = small()
    with guarded(stores(objects), job.values) as guard:
        for step in (TOTAL, TOTAL - 1, TOTAL, TOTAL):
            assert guard.restore(step=step) == step
            assert different(job.bits(), states[step]) == []


def test_two_jobs_of_one_process_restore_one_after_the_other(made: Made, stores: Stores) -> None:
    objects, states, _ = made
    store = stores(objects)
    for _ in range(2):
        step, state = restored(store, small)
        assert step == TOTAL
        assert different(state, states[TOTAL]) == []


def test_a_notice_by_hand_is_restored_in_the_same_process(stores: Stores) -> None:
    """`spotguard.testing.preempt`, then a new life in the same process."""
    store, job = stores({}), small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 0
        step_on(guard, job, 0)
        before = job.bits()
        testing.preempt(guard, seconds=30)
        with pytest.raises(Preempted):
            guard.step()
    step, state = restored(store, small)
    assert step == 1
    assert different(state, before) == []
    job = small()
    with guarded(store, job.values) as guard:
        assert train(guard, job, TOTAL) == TOTAL
