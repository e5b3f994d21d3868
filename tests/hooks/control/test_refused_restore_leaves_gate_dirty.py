"""A `restore` that was refused has changed nothing: training stands at the boundary where it stood."""

from __future__ import annotations

import pytest

from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import CheckpointError, UsageError
from tests.fakes.noticed import go_on, notice, trained
from tests.fakes.training import different, restored, small, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


def test_refused_restore_leaves_gate_dirty() -> None:
    """A save right behind it has this very step, and training goes on from there."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        with pytest.raises(CheckpointError, match="999"):
            guard.restore(step=999)
        assert guard.save().step == 2
        go_on(guard, job)
    step, bits = restored(store, small)
    assert step == 2
    assert different(bits, trajectory(small, 2)[2]) == []


def test_refused_restore_leaves_gate_dirty_at_a_notice() -> None:
    """Nothing of the next step is waited for, which may take longer than the window."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        with pytest.raises(CheckpointError, match="999"):
            guard.restore(step=999)
        assert guard._gate.place.earliest() == 2
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).step == 2
        guard._agent.hear(protocol.Withdrawn("n1"))
        go_on(guard, job)


def test_refused_restore_in_the_middle_of_a_step_leaves_it_there() -> None:
    """What the optimizer has begun is no state of any boundary."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        job.step(2)
        with pytest.raises(CheckpointError, match="999"):
            guard.restore(step=999)
        with pytest.raises(UsageError, match="in the middle of a step"):
            guard.save()
        guard.step()
        assert guard.save().step == 3
        go_on(guard, job, 3)
    assert store.kinds()["markers"] == 1
