"""A notice while the interpreter ends, when no thread can be started any more."""

from __future__ import annotations

import threading

import pytest

from spotguard.hooks.ipc import protocol
from tests.fakes.noticed import notice
from tests.fakes.store import FakeStore
from tests.fakes.two_guards import on_all, two_guards

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def refused(thread: threading.Thread) -> None:
    """As Python 3.12 says it from the end of the main thread on: python/cpython#104690."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_threads_at_exit_312(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks save the step on which they stand, by threads that are there already."""
    store = FakeStore()
    with two_guards([store, store]) as trainers:
        on_all(lambda rank: trainers[rank].step())
        on_all(lambda rank: trainers[rank].guard.save())
        on_all(lambda rank: trainers[rank].step())
        try:
            with monkeypatch.context() as ending:
                ending.setattr(threading.Thread, "start", refused)
                trainers[0].guard._agent.hear(notice())
                assert [each.heard.wait(protocol.Committed, 2).step for each in trainers] == [2, 2]
        finally:
            trainers[0].guard._saver.release("n1", "the test is over")  # or its end waits for the answer
