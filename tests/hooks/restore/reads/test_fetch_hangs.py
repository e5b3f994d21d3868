"""A request that hangs is sent again, a store that hangs is not, and what comes too late goes nowhere."""

from __future__ import annotations

import pytest

from spotguard.hooks.restore.reads.fetch import READERS
from spotguard.hooks.restore.reads.ranges import LEAST, MAX_BUFFERS, SPARE
from spotguard.providers.errors import DeniedError
from tests.fakes.clock import ManualClock
from tests.fakes.reads import PATIENCE, Reads
from tests.fakes.store import Fault
from tests.hooks.restore.reads.many_reads import (
    Strict,
    hanging,
    in_background,
    nobody_stays,
    pass_time,
    readers,
    reading,
    requests,
    stored,
)

__all__ = ["nobody_stays"]


@pytest.mark.parametrize("nth", [0, 5, -1])
def test_a_request_that_hangs_is_sent_again_and_its_bytes_come_too_late(nth: int) -> None:
    """Into another frame, so that what it may still write is written to nobody."""
    store, clock = Reads(), ManualClock()
    wanted, content = stored(store)
    late = nth % requests(wanted)
    store.hold = lambda number, key, start: number == late
    store.spoil = lambda number, key, start: number == late
    taker = Strict()
    run = reading(store, wanted, taker, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        assert store.held.wait(PATIENCE)
        pass_time(clock, lambda: not thread.is_alive())
        assert errors == []
        assert taker.bytes == content
        assert len(store.reads) == requests(wanted) + 1
        assert [thread.name for thread in readers()] != [], "the one that hangs is left behind"
    for each in readers():
        each.join(PATIENCE)
    assert taker.bytes == content
    assert run.buffers <= MAX_BUFFERS


def test_a_store_that_hangs_as_a_whole_is_not_asked_everything_twice() -> None:
    """When it goes on, so does the restore."""
    store, clock = Reads(), ManualClock()
    wanted, content = stored(store)
    store.hold = lambda number, key, start: number >= 6
    taker = Strict()
    run = reading(store, wanted, taker, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        assert store.held.wait(PATIENCE)
        for _ in range(30):
            assert clock.wait_for_waiters(1, PATIENCE)
            clock.advance(LEAST)
        assert len(store.reads) <= 6 + READERS + SPARE
        store.go.set()
        thread.join(PATIENCE)
    assert errors == []
    assert taker.bytes == content
    assert run.buffers <= MAX_BUFFERS


def test_when_every_thread_hangs_others_go_on() -> None:
    """What lags is sent again by new threads, which then do the rest: all but what nobody may send a third time."""
    store, clock = Reads(), ManualClock()
    wanted, content = stored(store, objects=20)
    store.hold = lambda number, key, start: 6 <= number < 6 + READERS
    taker = Strict()
    run = reading(store, wanted, taker, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        assert store.held.wait(PATIENCE)
        pass_time(clock, lambda: len(store.reads) > 6 + READERS + 2 * SPARE)
        store.go.set()
        pass_time(clock, lambda: not thread.is_alive())
    assert errors == []
    assert taker.bytes == content
    assert run.buffers <= MAX_BUFFERS


def test_one_of_two_requests_sent_may_fail() -> None:
    """The second is refused; the first brings it at last."""
    store, clock = Reads(), ManualClock()
    wanted, content = stored(store)
    count = requests(wanted)
    store.hold = lambda number, key, start: number == count - 1
    store.calls.clear()
    # A read that is held is no call yet, so what is sent again is call number count - 1.
    store.faults = [Fault(count - 1, verbs=("read_into",), error=lambda: DeniedError("not you"))]
    taker = Strict()
    with hanging(store):
        thread, errors = in_background(reading(store, wanted, taker, clock=clock))
        assert store.held.wait(PATIENCE)
        pass_time(clock, lambda: len(store.calls) == count)
        store.go.set()
        thread.join(PATIENCE)
    assert errors == []
    assert taker.bytes == content
