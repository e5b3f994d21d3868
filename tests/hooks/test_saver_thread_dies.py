"""The saving thread outlives an error that nobody has foreseen, and says what it knows."""

from __future__ import annotations

import threading

import pytest

from spotguard.hooks import protocol
from spotguard.hooks.preempted import Preempted
from tests.fakes.called import CalledStore, Request
from tests.fakes.noticed import notice, trained
from tests.fakes.training import different, restored, small, trajectory
from tests.fakes.watched_store import WatchedStore
from tests.hooks.ranks.gang import until

pytestmark = pytest.mark.torch


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="An exception that a store did not translate ends the saving thread behind the commit: the agent is never told.",
)
def test_saver_thread_dies(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome's record cannot be put; what was committed is said all the same, and training is let go."""
    store, died = WatchedStore(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: died.set())

    def odd(request: Request) -> None:
        if "/outcomes/" in request.key:
            raise RuntimeError("an SDK's own error that nobody translated")

    with trained(CalledStore(store, odd)) as (guard, job, heard):
        guard._agent.hear(notice())
        until(lambda: died.is_set() or bool(heard.of(protocol.Committed)))
        assert not died.is_set()
        assert heard.wait(protocol.Committed).step == 2
        guard._agent.hear(protocol.Leave("n1", 75))
        with pytest.raises(Preempted):
            job.step(2)
    assert "an SDK's own error that nobody translated" in caplog.text
    step, bits = restored(store, small)
    assert step == 2
    assert different(bits, trajectory(small, 2)[2]) == []
    assert [key for key in store.objects if "/outcomes/" in key] == []
