"""A training that goes back while a checkpoint of the way that it leaves is still being saved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.stores.connection import JobStore
from spotguard.hooks.control.ending import sigterm
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import CheckpointError
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import notice, trained
from tests.fakes.training import Job, different, restored, small, step_on, wait_shut
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_marker, is_object

pytestmark = pytest.mark.torch


def test_the_upload_of_the_way_that_is_left_ends_first(caplog: pytest.LogCaptureFixture) -> None:
    """Its step is reached again, otherwise: a notice there saves what is, and does not find it committed."""
    caplog.set_level(logging.INFO)
    store = WatchedStore()
    with trained(store, steps=1) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 1, 2)
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        assert guard.restore(step=1) == 1
        assert guard._saver._running is None
        assert guard._position().checkpoint_step == 1
        store.let_go()
        job.values["optimizer"].param_groups[0]["lr"] = 0.5
        step_on(guard, job, 1, 2)
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed, 2)
        assert (committed.id, committed.step) == ("n1", 3)
        bits = job.bits()
    assert store.manifests() == ["000000001-0001-0000", "000000003-0002-0002"]
    found, state = restored(store, small)
    assert found == 3
    assert different(state, bits) == []
    assert "spotguard cancels the background checkpoint under way: guard.restore() was called" in caplog.text


def test_a_checkpoint_that_is_restored_again_is_not_pruned_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the upload that was under way, with its own commit."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store = WatchedStore()

    def ended(request: Request) -> None:
        """Before the first object is read."""
        if request.verb == "read_into":
            store.let_go()
            assert upload is not None
            assert upload.done.wait(PATIENCE)

    with trained(CalledStore(store, ended)) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        upload = guard._saver._running
        assert upload is not None
        assert guard.restore(step=2) == 2
        assert guard._state.poisoned == ""
    assert store.manifests() == ["000000002-0001-0000"]


def test_one_that_waits_for_its_boundary_saves_nothing_of_either_way() -> None:
    """Training goes back in the middle of a step: its turn never comes."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        guard.save()
        job.step(2)
        guard._saver.background()
        wait_shut(guard)
        assert guard.restore(step=2) == 2
        step_on(guard, job, 2)
        assert guard.save().url.endswith("000000003-0002-0001/")
    assert len(store.manifests()) == 2


def test_a_staged_checkpoint_is_not_tidied_while_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is called off is whole already, at its marker: what is older stays until the next commit."""
    monkeypatch.setenv("SPOTGUARD_STAGE", str(folder))
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._saver.background()
        heard.wait(protocol.Committed)
        guard.save()  # behind it, and what it tidies up
        step_on(guard, job, 2)
        store.hold(lambda key: is_marker(key) and "/000000003-" in key)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        staged = guard._checkpointer._copies.stager
        assert staged is not None
        tidied: list[str] = []
        monkeypatch.setattr(staged.stage, "prune", lambda name, nbytes: tidied.append(str(name)))
        assert guard.restore(step=2) == 2
        store.let_go()
        guard.save()
        assert tidied == ["000000002-0002-0003"]


def test_one_that_cannot_be_waited_for_stays_of_its_attempt() -> None:
    """It ends when a newer attempt has begun: under its own name, as the newest of nothing, and nothing is deleted."""
    store, clock, job = WatchedStore(), ManualClock(), small()
    state = State(job.values, lambda frame: None, clock)
    checkpointer = Checkpointer(store, "run", 1, clock=clock, keep=Keep(1))
    try:
        job.step(0)
        state.at_boundary()
        checkpointer.save(state, SaveSpec(1), "manual", CancelScope(clock))
        restored_from = find_whole(store, "run")
        job.step(1)
        state.at_boundary()
        claim_attempt(store, "run", {}, created=0.0)

        def back() -> None:
            checkpointer.begin_attempt(claim_attempt(store, "run", {}, created=0.0))
            checkpointer.restored(restored_from)

        saved = checkpointer.save(
            state, SaveSpec(2, parked=True), "background", CancelScope(clock), opened=back
        )
        assert saved is not None
        assert saved.url.endswith("/000000002-0001-0001/")
        assert checkpointer.last is not None
        assert checkpointer.last.step == 1
        assert store.manifests() == ["000000001-0001-0000", "000000002-0001-0001"]
        assert sum(map(is_marker, store.objects)) == 2
    finally:
        checkpointer.close()
        state.close()


class Looking(SystemClock):
    """A test looks whenever the time is asked for."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        self.look()
        return super().monotonic()


@contextmanager
def rank(job: Job, clock: Clock) -> Iterator[Guard]:
    """The only one of a job of several."""
    channel = Channel.join(cast(JobStore, HashStore()), 0, 1, "here", clock, meet=lambda told: told or b"")
    guard = Guard(WatchedStore(), "run", job.values, clock, channel)
    try:
        yield guard
    finally:
        guard.close()
        sigterm.let_go()


def test_a_rank_that_could_not_go_back_has_what_it_had_to_save() -> None:
    job = small()
    with rank(job, SystemClock()) as guard:
        guard.restore()
        with pytest.raises(CheckpointError, match="77"):
            guard.restore(step=77)
        step_on(guard, job, 0)
        assert guard.save().step == 1


def test_a_rank_that_goes_back_never_offers_a_step_of_the_way_that_it_leaves() -> None:
    job, clock = small(), Looking()
    with rank(job, clock) as guard:
        guard.restore()
        for number in range(5):
            job.step(number)
            guard.step()
            if number == 1:
                guard.save()
        looks: list[tuple[bool, int]] = []
        clock.look = lambda: looks.append((guard._saver.ready, guard._gate.place.earliest()))
        assert guard.restore(step=2) == 2
        clock.look = lambda: None
        assert (False, 6) in looks
        assert {step for ready, step in looks[looks.index((False, 6)) :] if ready} == {2}
