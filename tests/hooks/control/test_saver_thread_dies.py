"""The saving thread outlives an error that nobody has foreseen, and says what it knows."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.consensus.events import BackgroundEvent
from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.ipc import protocol
from spotguard.providers.clock import SystemClock
from tests.fakes.called import CalledStore, Request
from tests.fakes.noticed import notice, trained
from tests.fakes.training import different, restored, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore
from tests.hooks.ranks.gang import until

pytestmark = pytest.mark.torch


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


def test_saver_thread_dies_of_no_error_on_the_way_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save is made by the same thread."""
    store, died = WatchedStore(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: died.set())
    with trained(store) as (guard, job, heard):

        def breaks(message: protocol.Message, *, droppable: bool = False) -> bool:
            if isinstance(message, protocol.Committed):
                guard._report._send = heard._take
                raise RuntimeError("a mistake of ours")
            return True

        guard._report._send = breaks
        guard._agent.hear(notice())
        until(lambda: guard._report._send == heard._take)
        next_turn = threading.Event()
        guard._saver.in_turn(next_turn.set)
        until(lambda: died.is_set() or next_turn.is_set())
        assert not died.is_set()
        guard._agent.hear(protocol.Withdrawn("n1"))
        step_on(guard, job, 2)
        assert guard.save().step == 3
    assert store.kinds()["markers"] == 2


class Garbled:
    """The job's store, from which something that nobody has foreseen comes to the thread that hears the others."""

    def __init__(self) -> None:
        self._store = HashStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clone(self) -> Garbled:
        return self

    def multi_get(self, keys: list[str]) -> Any:
        if threading.current_thread().name == "spotguard-mailbox":
            raise ValueError("a mistake of ours")
        return self._store.multi_get(keys)


def test_the_thread_that_hears_the_other_ranks_does_not_end_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever would call, or save with the others, knows that this rank hears nothing any more."""
    channel = Channel.join(Garbled(), 0, 1, "m0", SystemClock(), meet=lambda _: b"life")
    try:
        channel.listen(lambda epoch, call, standing: None)
        channel.call(BackgroundEvent("it is time"), lambda: 20.0)
        until(lambda: channel.lost)
    finally:
        channel.close(0.0)
    assert "receives no more notices of other machines; please report it" in caplog.text
    assert "ValueError: a mistake of ours" in caplog.text
