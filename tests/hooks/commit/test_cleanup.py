"""A notice that comes while old checkpoints are removed waits for no store that hangs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.checkpoint.marker import put_saving
from spotguard.hooks.checkpoint.retention import Keep, plan_pruning
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.cleanup import Cleanup, SmallRequests
from spotguard.hooks.commit.plan.damage import FoundDamage
from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.providers.errors import DeniedError, FullError
from tests.fakes.checkpoint import Save
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import notice, trained
from tests.fakes.store import FakeStore, Fault
from tests.fakes.training import step_on
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_manifest

pytestmark = pytest.mark.torch


def anything(key: str) -> bool:
    return True


@pytest.mark.parametrize("verb", ["list", "delete"])
@pytest.mark.parametrize("after", ["a commit", "a failure"])
def test_a_notice_does_not_wait_for_a_store_that_hangs_over_what_is_old(
    verb: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the look at what there is, nor for its removal."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        if after == "a failure":
            store.faults = [Fault(0, verbs=("put",), after=True, error=lambda: FullError("no room"))]
        store.calls.clear()
        store.hold(anything, verb)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed, 2 if after == "a failure" else 3).id == "n1"
        store.let_go()
    assert store.kinds()["manifests"] >= 1


def test_a_store_that_refuses_deletions_fails_no_save(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
        store.calls.clear()
        store.faults = [
            Fault(at, verbs=("delete",), error=lambda: DeniedError("no deletions")) for at in range(99)
        ]
        assert guard.save().step == 3
        assert any(verb == "delete" for verb, _ in store.calls)
    assert "could not delete old checkpoints, and leaves them: no deletions" in caplog.text


def test_one_that_failed_is_not_let_finish(caplog: pytest.LogCaptureFixture) -> None:
    """A notice of this very step, while the failed one's objects are removed: it has come to its end, and sends nothing
    more."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.faults = [Fault(1, verbs=("put",), error=lambda: FullError("no room"))]
        store.calls.clear()
        store.parallel = 1
        store.hold(anything, "list")
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        assert [verb for verb, _ in store.calls] == ["put", "put"]
        guard._agent.hear(notice())
        assert guard._checkpointer.uploading is None
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("n1", 2)
        store.let_go()
    assert "spotguard finishes the background checkpoint" not in caplog.text
    assert store.manifests() == ["000000002-0001-0001"]


def test_one_that_fails_under_a_notice_is_not_tidied_up() -> None:
    """It was let finish, and its manifest is refused: what is left of the window is for a save."""
    store = WatchedStore()
    store.parallel = 1
    with trained(store) as (guard, _, heard):
        store.hold(is_manifest)
        store.calls.clear()
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        assert guard._saver._running is not None
        assert guard._saver._running.promoted
        store.faults = [Fault(2, verbs=("put",), error=lambda: FullError("no room"))]
        store.let_go()
        assert heard.wait(protocol.Committed).id == "n1"
        assert {verb for verb, _ in store.calls} == {"put"}


def test_failed_save_whose_manifest_arrived_is_removed_manifest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request has no order inside. So a death between two requests leaves a partial checkpoint, and no damaged one."""
    store = WatchedStore()
    requests: list[list[str]] = []

    def delete(keys: Iterable[str], *, timeout: float | None = None) -> None:
        requests.append([*keys])
        WatchedStore.delete(store, requests[-1], timeout=timeout)
        assert {left.status for left in list_checkpoints(store, "run")} <= {"partial"}

    def put(key: str, data: memoryview, **kwargs: Any) -> None:
        WatchedStore.put(store, key, data, **kwargs)
        if is_manifest(key):
            raise FullError("no room")

    with trained(store) as (guard, _, _):
        monkeypatch.setattr(store, "put", put)
        monkeypatch.setattr(store, "delete", delete)
        with pytest.raises(FullError):
            guard.save()
    kinds = [{is_manifest(key) for key in keys} for keys in requests]
    assert kinds == [{True}, {False}]
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


def test_an_attempt_that_is_overtaken_says_so_once_and_ends_its_background_checkpoints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two processes train one run. A save by hand, and the one for a notice, are made all the same."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard.save()
        assert "has begun while this one" not in caplog.text
        claim_attempt(store, "run", {})
        for number in range(2, 5):
            step_on(guard, job, number)
            guard.save()
        errors = [record for record in caplog.records if "has begun while this one" in record.message]
        assert [record.levelname for record in errors] == ["ERROR"]
        assert not guard._saver.background()
        step_on(guard, job, 5)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed, 5).step == 6
        guard._agent.hear(protocol.Withdrawn("n1"))
        guard.restore()  # it begins an attempt above the other one
        assert guard._saver.background()


def test_an_attempt_says_once_that_an_older_one_has_committed_since_it_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A person looks at the newer of the two."""
    store = WatchedStore()
    claim_attempt(store, "run", {})
    with trained(store) as (guard, job, _):
        guard.save()
        assert "still trains" not in caplog.text
        store.time = lambda: time.time() + 60
        for number in range(2, 5):
            Save(step=7 + number, world=1).write(store)
            step_on(guard, job, number)
            guard.save()
    told = [(each.levelname, each.message) for each in caplog.records if "still trains" in each.message]
    assert told == [
        (
            "ERROR",
            "attempt 1 of run run still trains: it has committed step 9 since this one, attempt 2, began; end one of the two [SG510]",
        )
    ]


def test_a_checkpoint_that_this_machine_had_staged_is_no_second_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has the name of the attempt that had made it, and its upload ends behind this one's claim."""
    store, save = FakeStore(), Save(world=1)
    claim_attempt(store, "run", {})
    attempt = claim_attempt(store, "run", {})
    store.time = lambda: time.time() + 60
    save.write(store)
    with closing(ShardWriter(store, "run")) as writer:
        for brought, said in ((save.name, False), (None, True)):
            cleanup = Cleanup("run", writer.uploads, FoundDamage())
            cleanup.brought = brought
            cleanup.prune(Keep(3), attempt, CancelScope(ManualClock()))
            assert ("still trains" in caplog.text) is said


@pytest.mark.parametrize("announced", [True, False])
def test_a_last_save_that_a_preempted_machine_had_announced_is_no_second_training(announced: bool) -> None:
    store, save, now = FakeStore(), Save(world=1), 1000.0
    store.time = lambda: now
    claim_attempt(store, "run", {})
    if announced:
        put_saving(store, "run", save.name, 30.0)
    now += 10
    attempt = claim_attempt(store, "run", {})
    now += 10
    save.write(store)
    beside = plan_pruning(store, "run", keep=1, attempt=attempt).beside
    assert beside == (None if announced else save.name)


def test_checkpoint_of_other_ranks_that_lost_an_object_is_not_complete() -> None:
    """All manifests are there, and no rank has marked it: what a rank reports by them must be there too."""
    store, save = FakeStore(), Save(world=2)
    with closing(ShardWriter(store, "run")) as writer:
        requests = SmallRequests(writer.uploads, "run", ManualClock())
        assert not requests.complete(save.name)
        manifests = save.write(store, marker=False)
        assert requests.complete(save.name)
        del store.objects[manifests[1].object_key(0)]
        assert not requests.complete(save.name)
