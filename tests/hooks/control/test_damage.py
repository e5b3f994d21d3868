"""Damage that anybody finds: no rank and no agent counts on the checkpoint any more, and the next one is due at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import CheckpointError
from tests.fakes.called import CalledStore, Request
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import FakeStore
from tests.fakes.training import step_on
from tests.fakes.two_guards import on_all, two_guards
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_manifest, is_marker, is_object
from tests.hooks.ranks.gang import until
from tests.hooks.save.local_copy.stages import adapter

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

#: The checkpoint of the second step, the first one that the tests save.
FIRST = CheckpointName(1, 2, 0)


def loses_objects(store: FakeStore, of: str = "") -> Callable[[Request], None]:
    """Somebody else deletes a checkpoint's objects as its marker is put, once, and no request fails."""
    done: list[str] = []

    def before(request: Request) -> None:
        if request.verb == "put" and is_marker(request.key) and of in request.key and not done:
            done.append(request.key)
            for key in [key for key in store.objects if is_object(key) and of in key]:
                del store.objects[key]

    return before


def damaged(store: FakeStore, name: CheckpointName) -> None:
    """Flip a bit of each object of this checkpoint, at rest."""
    for key in [key for key in store.objects if is_object(key) and str(name) in key]:
        store.corrupt(key, len(store.objects[key]) - 1)


def told(guard: Guard, heard: Heard) -> list[str]:
    """The damaged checkpoints of which the agent is told from now on."""
    names: list[str] = []

    def send(message: protocol.Message, *, droppable: bool = False) -> bool:
        if isinstance(message, protocol.CheckpointDamaged):
            names.append(message.checkpoint)
        return heard._take(message, droppable=droppable)

    guard._agent.send = send  # type: ignore[method-assign]
    return names


def nothing_is_counted_on(guard: Guard) -> None:
    assert guard._checkpointer.last is None
    assert guard._checkpointer.complete == -1
    assert guard._checkpointer._known() is None
    assert guard._position().checkpoint_step == -1


def a_notice_is_answered_by_another_checkpoint(
    guard: Guard, heard: Heard, store: FakeStore, step: int
) -> None:
    """At the very step of the damaged one."""
    guard._agent.hear(notice(seconds=20.0))
    committed = heard.wait(protocol.Committed, len(heard.of(protocol.Committed)) + 1)
    assert (committed.id, committed.step, committed.level) == ("n1", step, "full")
    whole = find_whole(store, "run")
    assert whole is not None
    assert whole.name.step == step
    assert str(whole.name) in committed.url
    (newest, *_) = list_checkpoints(store, "run")
    assert (newest.name, newest.status) == (whole.name, "complete")


def test_manual_save_that_the_prune_finds_damaged_fails_and_a_notice_at_its_step_saves() -> None:
    below = FakeStore()
    with trained(CalledStore(below, loses_objects(below))) as (guard, _, heard):
        names = told(guard, heard)
        with pytest.raises(CheckpointError, match="step 2 was committed, and cannot be restored"):
            guard.save()
        nothing_is_counted_on(guard)
        assert names == [str(FIRST)]
        assert heard.of(protocol.Committed) == [], "nobody is told of a commit"
        a_notice_is_answered_by_another_checkpoint(guard, heard, below, 2)


def test_background_checkpoint_that_the_prune_finds_damaged_has_failed_and_the_next_is_due_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "3600")
    below = FakeStore()
    with trained(CalledStore(below, loses_objects(below))) as (guard, job, heard):
        assert guard._saver.background()
        until(lambda: guard._saver.failing != "")
        assert "cannot be restored" in guard._position().failing
        nothing_is_counted_on(guard)
        assert heard.of(protocol.Committed) == []
        step_on(guard, job, 2)
        assert heard.wait(protocol.Committed).step == 3
        assert guard._position().failing == ""
        whole = find_whole(below, "run")
        assert whole is not None
        assert whole.name.step == 3
        assert guard._schedule.due > 0, "once"


def test_damage_that_the_agent_reports_is_forgotten_by_a_notice_at_that_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "3600")
    store = FakeStore()
    with trained(store) as (guard, _, heard):
        assert guard.save().step == 2
        assert guard._checkpointer.complete == 2
        damaged(store, FIRST)
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs"))
        nothing_is_counted_on(guard)
        assert guard._schedule.due == -math.inf
        a_notice_is_answered_by_another_checkpoint(guard, heard, store, 2)


def test_name_that_is_no_checkpoint_changes_nothing() -> None:
    store = FakeStore()
    with trained(store) as (guard, _, _):
        guard.save()
        guard._agent.hear(protocol.CheckpointDamaged("../../elsewhere", 2))
        assert guard._position().checkpoint_step == 2


def test_damage_of_an_older_checkpoint_leaves_a_newest_one_with_objects_of_its_own() -> None:
    store = FakeStore()
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        url = guard.save().url
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs"))
        assert guard._position().checkpoint_step == 3
        assert guard._checkpointer.complete == 3
        guard._agent.hear(notice(seconds=20.0))
        assert heard.wait(protocol.Committed, 3).url == url


def test_restore_that_finds_damage_and_fails_leaves_no_checkpoint_that_a_notice_counts_on() -> None:
    """The script goes on with the state that it has."""
    store = FakeStore()
    with trained(store) as (guard, _, heard):
        guard.save()
        names = told(guard, heard)
        del store.objects[next(key for key in store.objects if is_object(key))]
        with pytest.raises(CheckpointError):
            guard.restore(step=2)
        nothing_is_counted_on(guard)
        assert names == [str(FIRST)]
        a_notice_is_answered_by_another_checkpoint(guard, heard, store, 2)


def test_restore_that_passes_a_damaged_checkpoint_over_tells_the_agent_and_counts_on_the_one_it_loads() -> (
    None
):
    store = FakeStore()
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        guard.save()
        names = told(guard, heard)
        newest = CheckpointName(1, 3, 1)
        damaged(store, newest)
        assert guard.restore() == 2
        assert names == [str(newest)]
        assert guard._position().checkpoint_step == 2


def test_damage_in_another_run_is_no_damage_of_this_one() -> None:
    store = FakeStore()
    with trained(store) as (guard, _, heard):
        guard.save()
        for key, data in [*store.objects.items()]:
            if key.startswith("run/") and not is_object(key):
                store.objects["base" + key.removeprefix("run")] = data
        names = told(guard, heard)
        with pytest.raises(CheckpointError):
            guard.restore(run_id="base")
        assert names == []
        assert guard._position().checkpoint_step == 2


@pytest.mark.parametrize("finder", ["the prune", "an agent of the second machine", "a restore"])
def test_every_rank_learns_of_damage_that_one_of_them_finds(finder: str) -> None:
    """And its agent. A notice at that very step is answered by another checkpoint on both."""
    below = FakeStore()
    before = loses_objects(below) if finder == "the prune" else lambda request: None
    stores = [CalledStore(below, before), CalledStore(below, before)]
    with two_guards(stores) as trainers:
        on_all(lambda rank: trainers[rank].step())
        names = [told(each.guard, each.heard) for each in trainers]

        def save(rank: int) -> str:
            try:
                return trainers[rank].guard.save().url
            except CheckpointError as error:
                return str(error)

        def refused(rank: int) -> bool:
            with pytest.raises(CheckpointError):
                trainers[rank].guard.restore(step=1)
            return True

        results = on_all(save)
        if finder == "the prune":
            assert any("cannot be restored" in each for each in results)
        elif finder == "a restore":
            del below.objects[next(key for key in below.objects if is_object(key))]
            assert on_all(refused) == [True, True]
        else:
            (name,) = {each.rstrip("/").rpartition("/")[2] for each in results}
            damaged(below, CheckpointName(1, 1, int(name.rpartition("-")[2])))
            trainers[1].guard._agent.hear(protocol.CheckpointDamaged(name, 1, "CRC32 differs"))
        until(lambda: all(names) and trainers[0].guard._schedule.due == -math.inf)
        for each in trainers:
            nothing_is_counted_on(each.guard)
        heard = [(each.heard, len(each.heard.of(protocol.Committed))) for each in trainers]
        trainers[1].guard._agent.hear(notice(seconds=20.0))
        for agent, count in heard:
            committed = agent.wait(protocol.Committed, count + 1)
            assert (committed.id[:2], committed.step) == ("n1", 1)
            assert names[0][0] not in committed.url
        whole = find_whole(below, "run")
        assert whole is not None
        assert whole.name.step == 1
        assert [len(each) for each in names] == [1, 1], "once"


def test_upload_that_refers_to_damaged_objects_does_not_finish_for_a_notice() -> None:
    """Its rest is smaller than a new save, and worth nothing."""
    store = WatchedStore()
    with trained(store, make=adapter) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.hold(is_manifest)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        assert guard._checkpointer.promotes(3, guard._clock.monotonic() + 60.0)
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs"))
        assert guard._checkpointer.promotes(3, guard._clock.monotonic() + 60.0) == ""
        guard._agent.hear(notice(seconds=20.0))
        store.let_go()
        until(lambda: any(each.id == "n1" for each in heard.of(protocol.Committed)))
        (committed,) = [each for each in heard.of(protocol.Committed) if each.id == "n1"]
        assert committed.step == 3
    whole = find_whole(store, "run")
    assert whole is not None
    assert str(whole.name) in committed.url
    assert whole.oldest == whole.name, "it refers to no other"
