"""A notice that comes while old checkpoints are removed waits for no store that hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest

from spotguard.hooks import protocol
from spotguard.providers.errors import FullError
from spotguard.providers.stores.store import ObjectInfo
from tests.fakes.noticed import notice, trained
from tests.fakes.store import Fault
from tests.fakes.watched_store import PATIENCE, WatchedStore

pytestmark = pytest.mark.torch


class Hanging(WatchedStore):
    """Once told, a verb says nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = ""
        self.asked, self.free = threading.Event(), threading.Event()

    def _answer(self, verb: str) -> None:
        if verb == self.hangs:
            self.asked.set()
            assert self.free.wait(PATIENCE)

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        self._answer("list")
        return super().list(prefix, timeout=timeout)

    def delete(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        self._answer("delete")
        super().delete(keys, timeout=timeout)


@pytest.mark.parametrize("verb", ["list", "delete"])
@pytest.mark.parametrize("after", ["a commit", "a failure"])
def test_a_notice_does_not_wait_for_a_store_that_hangs_over_what_is_old(
    verb: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the look at what there is, nor for its removal."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    store = Hanging()
    with trained(store) as (guard, job, heard):
        guard.save()
        job.step(2)
        guard.step()
        if after == "a failure":
            store.faults = [Fault(0, verbs=("put",), error=lambda: FullError("no room"))]
        store.calls.clear()
        store.hangs = verb
        guard._saver.background()
        assert store.asked.wait(PATIENCE)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed, 2 if after == "a failure" else 3).id == "n1"
        store.free.set()
    assert store.kinds()["manifests"] >= 1


def is_manifest(key: str) -> bool:
    return "-of-" in key and key.endswith(".json")


def test_one_that_failed_is_not_let_finish(caplog: pytest.LogCaptureFixture) -> None:
    """A notice of this very step, while the failed one's objects are removed: it has come to its end, and sends nothing
    more."""
    store = Hanging()
    with trained(store) as (guard, _, heard):
        store.faults = [Fault(1, verbs=("put",), error=lambda: FullError("no room"))]
        store.calls.clear()
        store.parallel = 1
        store.hangs = "list"
        guard._saver.background()
        assert store.asked.wait(PATIENCE)
        assert [verb for verb, _ in store.calls] == ["put", "put"]
        guard._agent.hear(notice())
        assert guard._checkpointer.uploading is None
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step) == ("n1", 2)
        store.free.set()
    assert "is let finish" not in caplog.text
    assert [key.split("/")[2] for key in store.objects if is_manifest(key)] == ["000000002-0001-0001"]


def test_one_that_fails_under_a_notice_is_not_tidied_up() -> None:
    """It was let finish, and its manifest is refused: what is left of the window is for a save."""
    store = Hanging()
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
