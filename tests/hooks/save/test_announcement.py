"""An emergency save tells a start that comes early until when its checkpoint may be complete."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spotguard.hooks.checkpoint.format.codec import decode_saving
from spotguard.hooks.checkpoint.format.keys import SAVING
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import DeniedError, FullError
from tests.fakes.noticed import notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import step_on
from tests.fakes.two_guards import on_all, two_guards
from tests.fakes.watched_store import WatchedStore, is_manifest

pytestmark = pytest.mark.torch


def announced(store: WatchedStore) -> dict[str, float]:
    """The names of the announced checkpoints, each with the seconds that its save has."""
    store.wait_for(lambda keys: bool(store.announcements))
    return {key.split("/")[2]: decode_saving(data, key) for key, data in store.announcements.items()}


def test_an_emergency_save_is_announced_with_its_deadline() -> None:
    """Of sixty seconds, three are the agent's reserve."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        guard._agent.hear(notice(seconds=60, reserve=3))
        assert heard.wait(protocol.Committed).id == "n1"
        ((name, left),) = announced(store).items()
        assert name == "000000002-0001-0000"
        assert 50 < left <= 57


def test_a_save_without_a_notice_is_not_announced() -> None:
    """A start does not wait for it: nobody knows when it ends."""
    store = WatchedStore()
    with trained(store) as (guard, job, _):
        guard.save()
        step_on(guard, job, 2)
        assert guard._saver.background()
        store.wait_committed(2)
        assert store.announcements == {}


def test_a_background_checkpoint_that_a_notice_lets_finish_is_announced() -> None:
    """From then on it is the emergency save."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.hold(is_manifest)
        guard._saver.background()
        assert store.reached.wait(100)
        guard._agent.hear(notice())
        assert [*announced(store)] == ["000000002-0001-0000"]
        store.let_go()
        assert heard.wait(protocol.Committed).step == 2


def test_no_save_waits_for_its_announcement() -> None:
    """The store hangs at it, and takes everything else."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        store.hold(lambda key: key.endswith(SAVING))
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).id == "n1"
        assert store.announcements == {}
        store.let_go()


def test_no_save_fails_with_its_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses it: then no start waits."""
    store = WatchedStore()
    put, refused = store.put, []

    def strict(key: str, data: memoryview, **options: object) -> None:
        if key.endswith(SAVING):
            refused.append(key)
            raise DeniedError("no such names here")
        put(key, data, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", strict)
    with trained(store) as (guard, _, heard):
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).id == "n1"
    assert store.announcements == {}
    assert len(refused) == 1


def test_a_save_that_fails_takes_its_announcement_back() -> None:
    """Else the next start would wait to the deadline for nothing."""
    store, came = WatchedStore(), []
    put = store.put

    def noted(key: str, data: memoryview, **options: object) -> None:
        put(key, data, **options)  # type: ignore[arg-type]
        came.extend([key] * key.endswith(SAVING))

    store.put = noted  # type: ignore[method-assign]
    with trained(store) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.faults = [Fault(at, verbs=("put",), error=lambda: FullError("no more")) for at in range(99)]
        guard._agent.hear(notice())
        heard.wait(protocol.Failed)
        store.wait_for(lambda keys: bool(came) and not store.announcements)
    assert [key.split("/")[2] for key in came] == ["000000003-0001-0001"]


def test_one_of_several_ranks_announces_their_save() -> None:
    """A key is never written twice with other bytes, and the seconds of two ranks differ."""
    stores = WatchedStore(), WatchedStore()
    stores[1].objects = stores[0].objects
    with two_guards(stores) as trainers:
        on_all(lambda rank: trainers[rank].step())
        trainers[1].guard._agent.hear(notice())

        def commits(rank: int) -> Iterable[str]:
            return [each.id for each in [trainers[rank].heard.wait(protocol.Committed)]]

        assert on_all(commits)[1] == ["n1"]
        assert len(announced(stores[0])) == 1
        assert stores[1].announcements == {}
