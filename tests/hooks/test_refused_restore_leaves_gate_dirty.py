"""A `restore` that was refused has changed nothing: training stands at the boundary where it stood."""

from __future__ import annotations

import pytest

from spotguard.hooks import protocol
from spotguard.providers.errors import CheckpointError, UsageError
from tests.fakes.noticed import go_on, notice, trained
from tests.fakes.training import different, restored, small, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


@pytest.mark.xfail(
    strict=True,
    raises=UsageError,
    reason="A refused `restore(step=…)` leaves the gate as in the middle of a step, and `guard.save()` is refused for it.",
)
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


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A notice behind a refused `restore(step=…)` waits for the next boundary instead of saving the step that stands.",
)
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
