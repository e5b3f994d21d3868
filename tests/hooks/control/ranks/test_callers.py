"""Calls to the other ranks are made in order, by threads that are there already."""

from __future__ import annotations

import threading
import time

import pytest

from spotguard.hooks.control.ranks.callers import CallerPool
from spotguard.providers.clock import SystemClock

#: Seconds after which a wait between threads counts as a hang.
PATIENCE = 100.0


def soon() -> float:
    return time.monotonic() + PATIENCE


def callers() -> CallerPool:
    made = CallerPool(SystemClock())
    made.begin()
    return made


def test_calls_are_made_in_the_order_in_which_they_are_given() -> None:
    """Though there are several threads."""
    made: list[int] = []
    done, calls = threading.Event(), callers()
    for number in range(20):
        calls.give(lambda number=number: made.append(number), soon())  # type: ignore[misc]
    calls.give(done.set, soon())
    assert done.wait(PATIENCE)
    assert made == list(range(20))
    calls.close()


def test_a_call_does_not_wait_beyond_its_own_time_for_the_one_before() -> None:
    """The job's store is silent for that one; whoever asked for this one is told in time."""
    silent, told, calls = threading.Event(), threading.Event(), callers()
    calls.give(lambda: silent.wait(PATIENCE), soon())
    calls.give(told.set, time.monotonic())
    assert told.wait(PATIENCE)
    assert not silent.is_set()
    silent.set()
    calls.close()


def test_without_new_threads_the_existing_ones_make_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at interpreter exit on Python 3.12: also where more calls wait than there are threads."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    calls, first, done = callers(), threading.Event(), threading.Event()
    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(4):
        calls.give(lambda: first.wait(PATIENCE), soon())
    calls.give(done.set, soon())
    first.set()
    assert done.wait(PATIENCE)
    calls.close()


def test_a_mistake_in_one_call_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next call is made."""
    calls, done = callers(), threading.Event()
    for _ in range(3):
        calls.give(lambda: 1 / 0, soon())
    calls.give(done.set, soon())
    assert done.wait(PATIENCE)
    assert [record.message for record in caplog.records].count(
        "internal error; please report it [SG704]"
    ) == 3
    calls.close()


def test_close_ends_the_threads() -> None:
    """Also that of a call that comes later."""
    before = set(threading.enumerate())
    calls, done = callers(), threading.Event()
    calls.close()
    calls.give(done.set, soon())
    assert done.wait(PATIENCE)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
