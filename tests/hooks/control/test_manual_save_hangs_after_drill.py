"""A drill that falls into `guard.save()` of several ranks: each of them comes back from it with a checkpoint."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.request import SavedCheckpoint
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import NotFoundError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.noticed import notice
from tests.fakes.store import FakeStore
from tests.fakes.two_guards import PATIENCE, on_all, two_guards
from tests.fakes.watched_store import is_marker

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Late:
    """What rank 0 puts is seen by rank 1 later, as over a slow link."""

    def __init__(self) -> None:
        self.hidden = True
        #: Set when rank 1 has looked for it in vain: its own part is in the store.
        self.missed = threading.Event()

    def __call__(self, request: Request) -> None:
        if self.hidden and ("/00000-of-" in request.key or is_marker(request.key)):
            self.missed.set()
            raise NotFoundError(request.key)


class Hurried(SystemClock):
    """Its ten minutes go by at once for whoever waits for a word that does not come, as soon as `hurry` is set."""

    def __init__(self) -> None:
        self.hurry = False
        self._ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def wait(self, event: threading.Event, timeout: float) -> bool:
        if not self.hurry or not 1.0 < timeout <= 60.0:
            return super().wait(event, timeout)
        if not event.wait(60.0):
            self._ahead += 600.0
        return event.is_set()


@pytest.mark.parametrize("withdrawn", [False, True])
def test_manual_save_hangs_after_drill(withdrawn: bool) -> None:
    """Rank 0 has seen the commit and goes on; rank 1 has not looked yet when the drill begins, and has the same step in the end.

    So it has where a notice is withdrawn before its own save has come to an end.
    """
    store, late, clock = FakeStore(), Late(), Hurried()
    stores: list[BlobStore] = [store, CalledStore(store, late)]
    with two_guards(stores, [SystemClock(), clock]) as (first, second), ThreadPoolExecutor(2) as pool:
        late.hidden = False
        on_all(lambda rank: (first, second)[rank].step())
        late.hidden = True
        saves = [pool.submit(each.guard.save) for each in (first, second)]
        try:
            assert saves[0].result(PATIENCE).step == 1
            assert late.missed.wait(PATIENCE)
            first.guard._agent.hear(notice(drill=not withdrawn))
            second.heard.wait(protocol.Progress)  # what it was at before has ended
            late.hidden = False
            assert withdrawn or [each.heard.wait(protocol.Committed).step for each in (first, second)] == [
                1,
                1,
            ]
        finally:
            late.hidden = False
            clock.hurry = True
            first.guard._agent.hear(protocol.Withdrawn("n1") if withdrawn else protocol.Resume("n1"))
        saved = saves[1].result(PATIENCE)
    assert isinstance(saved, SavedCheckpoint)
    assert saved.step == 1
