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
        guard._on_message(notice())
        assert heard.wait(protocol.Committed, 2 if after == "a failure" else 3).id == "n1"
        store.free.set()
    assert store.kinds()["manifests"] >= 1
