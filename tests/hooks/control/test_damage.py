"""Damage that anybody finds: no rank and no agent counts on the checkpoint any more, and the next one is due at once."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial

import pytest
from torch import nn

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import referred
from spotguard.hooks.checkpoint.listing import list_checkpoints
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import CheckpointError
from spotguard.providers.text import key_list
from tests.fakes.called import CalledStore, Request
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import FakeStore
from tests.fakes.training import Job, step_on
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
    assert guard._checkpointer.saved.complete == -1
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
        assert guard._checkpointer.saved.complete == 2
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
        assert guard._checkpointer.saved.complete == 3
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
    below, returned, pruning = FakeStore(), threading.Event(), list[int]()

    def loses(rank: int, request: Request) -> None:
        """The objects go when one rank prunes and the other one's save has returned."""
        if finder != "the prune" or pruning or (request.verb, request.key) != ("list", "run/checkpoints/"):
            return
        if any(map(is_marker, below.objects)):
            pruning.append(rank)
            assert returned.wait(PATIENCE)
            remove(below, set(filter(is_object, below.objects)))

    with two_guards([CalledStore(below, partial(loses, rank)) for rank in range(2)]) as trainers:
        on_all(lambda rank: trainers[rank].step())
        names = [told(each.guard, each.heard) for each in trainers]

        def save(rank: int) -> str:
            url = trainers[rank].guard.save().url
            returned.set()
            return url

        def refused(rank: int) -> bool:
            with pytest.raises(CheckpointError):
                trainers[rank].guard.restore(step=1)
            return True

        results = on_all(save)
        if finder == "the prune":
            assert trainers[pruning[0]].heard.of(protocol.Committed) == [], "it is not told after the damage"
        elif finder == "a restore":
            del below.objects[next(key for key in below.objects if is_object(key))]
            assert on_all(refused) == [True, True]
        else:
            name = results[0].rstrip("/").rpartition("/")[2]
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
        shared = max(
            (key for key in store.objects if is_object(key)), key=lambda key: len(store.objects[key])
        )
        step_on(guard, job, 2)
        store.hold(is_manifest)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        assert guard._checkpointer.promotes(3, guard._clock.monotonic() + 60.0)
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs", shared))
        assert guard._checkpointer.promotes(3, guard._clock.monotonic() + 60.0) == ""
        guard._agent.hear(notice(seconds=20.0))
        store.let_go()
        until(lambda: any(each.id == "n1" for each in heard.of(protocol.Committed)))
        (committed,) = [each for each in heard.of(protocol.Committed) if each.id == "n1"]
        assert committed.step == 3
    whole = find_whole(store, "run")
    assert whole is not None
    assert str(whole.name) in committed.url
    assert referred(whole.manifests) == {}, "it refers to no other"


# --- a later checkpoint is damaged if it refers to a damaged object, and only then ---


def saved_twice(guard: Guard, job: Job, store: FakeStore) -> tuple[str, set[str], set[str]]:
    """Save two checkpoints that share frozen objects. Return the later one's URL, the shared keys, and the first one's other keys."""
    guard.save()
    step_on(guard, job, 2)
    url = guard.save().url
    shared = set(shared_objects(store))
    assert shared
    return url, shared, {key for key in store.objects if is_object(key) and str(FIRST) in key} - shared


def shared_objects(store: FakeStore) -> list[str]:
    whole = find_whole(store, "run")
    assert whole is not None
    return sorted(referred(whole.manifests))


def remove(store: FakeStore, keys: set[str]) -> None:
    for key in keys:
        del store.objects[key]


@pytest.mark.parametrize("damage", ["its own objects", "its manifests", "its directory's other objects"])
def test_damage_that_a_later_checkpoint_does_not_share_leaves_it_and_is_told_of_the_earlier_one_alone(
    damage: str,
) -> None:
    store = FakeStore()
    with trained(store, make=adapter) as (guard, job, heard):
        url, _, own = saved_twice(guard, job, store)
        names = told(guard, heard)
        found = {"its own objects": own, "its manifests": set[str]()}.get(damage, {min(own)})
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs", key_list(found)))
        assert names == [str(FIRST)]
        assert guard._position().checkpoint_step == 3
        guard._agent.hear(notice(seconds=20.0))
        assert heard.wait(protocol.Committed, 3).url == url


@pytest.mark.parametrize("many", [False, True], ids=["named", "too many to name"])
def test_damage_of_a_shared_object_is_damage_of_each_checkpoint_that_refers_to_it(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotguard.providers.text._MOST_OBJECTS", 1 if many else 10)
    store = FakeStore()
    with trained(store, make=adapter) as (guard, job, heard):
        _, shared, own = saved_twice(guard, job, store)
        names = told(guard, heard)
        objects = key_list(shared | own)
        assert many is not (max(shared) in objects)
        guard._agent.hear(protocol.CheckpointDamaged(str(FIRST), 2, "CRC32 differs", objects))
        nothing_is_counted_on(guard)
        assert sorted(names) == [str(FIRST), str(CheckpointName(1, 3, 1))]
        a_notice_is_answered_by_another_checkpoint(guard, heard, store, 3)


def test_restore_that_finds_damage_in_a_shared_object_drops_the_later_checkpoint_too() -> None:
    store = FakeStore()
    with trained(store, make=adapter) as (guard, job, heard):
        _, shared, _ = saved_twice(guard, job, store)
        names = told(guard, heard)
        for key in shared:
            store.corrupt(key, len(store.objects[key]) - 1)
        with pytest.raises(CheckpointError):
            guard.restore(step=2)
        nothing_is_counted_on(guard)
        assert sorted(names) == [str(FIRST), str(CheckpointName(1, 3, 1))]


def test_restore_that_finds_damage_in_other_objects_leaves_the_later_checkpoint() -> None:
    store = FakeStore()
    with trained(store, make=adapter) as (guard, job, heard):
        _, _, own = saved_twice(guard, job, store)
        names = told(guard, heard)
        remove(store, own)
        with pytest.raises(CheckpointError):
            guard.restore(step=2)
        assert names == [str(FIRST)]
        assert guard._position().checkpoint_step == 3


def test_prune_that_finds_the_newest_damaged_and_an_earlier_one_too_names_both() -> None:
    """They have lost a shared object."""
    below = FakeStore()

    def before(request: Request) -> None:
        if request.verb == "put" and is_marker(request.key) and "/000000003-" in request.key:
            remove(below, set(shared_objects(below)))

    with trained(CalledStore(below, before), make=adapter) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        names = told(guard, heard)
        with pytest.raises(CheckpointError, match="step 3 was committed, and cannot be restored"):
            guard.save()
        nothing_is_counted_on(guard)
        assert sorted(names) == [str(FIRST), str(CheckpointName(1, 3, 1))]


def test_damage_of_one_ranks_shared_object_drops_the_later_checkpoint_on_all_ranks() -> None:
    """The other rank's part refers to other objects, and its agent has read the damage."""
    store = FakeStore()

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 64).requires_grad_(False), nn.Linear(64, 8))

    with two_guards([store, store], make=make) as trainers:
        for _ in range(2):
            on_all(lambda rank: trainers[rank].step())
            on_all(lambda rank: trainers[rank].guard.save())
        names = [told(each.guard, each.heard) for each in trainers]
        shared = [key for key in shared_objects(store) if "/00001-of-00002/" in key]
        first = shared[0].split("/")[2]
        trainers[0].guard._agent.hear(protocol.CheckpointDamaged(first, 1, "CRC32 differs", key_list(shared)))
        until(lambda: [len(each) for each in names] == [2, 2])
        assert sorted(names[0]) == sorted(names[1])
        for each in trainers:
            nothing_is_counted_on(each.guard)


def test_damage_of_one_ranks_own_objects_leaves_the_later_checkpoint_on_all_ranks() -> None:
    store = FakeStore()
    with two_guards([store, store]) as trainers:
        urls = []
        for _ in range(2):
            on_all(lambda rank: trainers[rank].step())
            urls.append(on_all(lambda rank: trainers[rank].guard.save().url)[0])
        names = [told(each.guard, each.heard) for each in trainers]
        first = urls[0].rstrip("/").rpartition("/")[2]
        own = [key for key in store.objects if is_object(key) and f"{first}/00001-of-00002/" in key]
        trainers[0].guard._agent.hear(protocol.CheckpointDamaged(first, 1, "CRC32 differs", key_list(own)))
        until(lambda: all(names))
        assert names == [[first], [first]]
        assert [each.guard._position().checkpoint_step for each in trainers] == [2, 2]
