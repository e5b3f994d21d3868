"""Many requests in flight: all that is wanted is handed on once, though the store fails for a while."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from pathlib import Path

import pytest

from spotguard.hooks.restore.reads.ranges import MAX_BUFFERS
from spotguard.hooks.restore.retrying_store import RetryingStore
from spotguard.providers.errors import CheckpointError, StoreError, ThrottledError, UnavailableError
from spotguard.providers.stores.file import FileStore
from tests.fakes.clock import Impatient
from tests.fakes.reads import PATIENCE, Reads
from tests.fakes.store import Fault
from tests.hooks.restore.reads.many_reads import (
    LIMIT,
    Strict,
    loads_of,
    nobody_stays,
    readers,
    reading,
    requests,
    stored,
)

__all__ = ["nobody_stays"]


# --- all is well -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fake", "file"])
def test_everything_wanted_is_handed_on_once(kind: str, tmp_path: Path) -> None:
    """And each request was sent once; all threads are gone when it is over."""
    store = Reads() if kind == "fake" else FileStore(tmp_path)
    wanted, content = stored(store)
    taker = Strict()
    reading(store, wanted, taker).run()
    assert taker.bytes == content
    assert not readers()
    if isinstance(store, Reads):
        assert sorted(store.reads) == sorted(
            (each.key, each.start, each.end - each.start) for load in loads_of(wanted) for each in load.ranges
        )


def test_nothing_wanted_is_nothing_read() -> None:
    store = Reads()
    reading(store, [], Strict()).run()
    assert store.reads == []


def test_progress_ends_at_all_of_it() -> None:
    """And never goes back; it is told on the thread that waits."""
    store = Reads()
    wanted, _ = stored(store)
    told: list[tuple[int, int]] = []
    here = threading.current_thread()

    def progress(done: int, total: int) -> None:
        assert threading.current_thread() is here
        told.append((done, total))

    reading(store, wanted, Strict(), progress=progress).run()
    total = sum(load.nbytes for load in loads_of(wanted))
    assert told[-1] == (total, total)
    assert told == sorted(told)


def test_a_requests_timeout_is_passed_on() -> None:
    store = Reads()
    wanted, _ = stored(store, objects=1)
    reading(store, wanted, Strict(), timeout=7.5).run()
    assert set(store.timeouts) == {7.5}


def test_frames_are_reused_and_never_more_than_the_bound() -> None:
    """Some hundred requests, some of large chunks: the memory is that of `MAX_BUFFERS` and no more."""
    store = Reads()
    wanted, content = stored(store, objects=60)
    assert requests(wanted) > 4 * MAX_BUFFERS
    taker = Strict()
    run = reading(store, wanted, taker)
    run.run()
    assert 0 < run.buffers <= MAX_BUFFERS
    assert taker.bytes == content


# --- for a while -----------------------------------------------------------------------------------------------


def test_receivers_of_bytes_are_released_after_an_error() -> None:
    """A tensor's memory is wanted again at once: no circle of error and traceback keeps it for the collector."""
    store = Reads()
    wanted, _ = stored(store)
    store.corrupt(wanted[0].key, wanted[0].chunk.start)
    taker = Strict()
    gone = weakref.ref(taker)
    gc.disable()
    try:
        with pytest.raises(CheckpointError):
            reading(store, wanted, taker).run()
        del taker
        for thread in readers():
            thread.join(PATIENCE)
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [UnavailableError, ThrottledError])
@pytest.mark.parametrize("every", [2, 3, 7])
def test_failures_for_now_cost_one_request_each(every: int, error: type[StoreError]) -> None:
    """At every k-th request: all bytes are right, what was read stays read, and the others are not asked again."""
    store = Reads()
    wanted, content = stored(store)
    count = requests(wanted)
    failing = list(range(0, count, every))
    store.calls.clear()
    store.faults = [Fault(at, verbs=("read_into",), error=lambda: error("not now")) for at in failing]
    taker = Strict()
    reading(RetryingStore(store, Impatient(), "so"), wanted, taker).run()
    assert taker.bytes == content
    assert len(store.reads) == count + len(failing)
    assert store.nbytes <= sum(load.nbytes for load in loads_of(wanted)) + len(failing) * LIMIT


@pytest.mark.parametrize("seed", range(10))
def test_failures_anywhere(seed: int) -> None:
    """A third of all calls fail, before their effect or after it: seeded."""
    chance = random.Random(seed)
    store = Reads()
    wanted, content = stored(store, seed=seed)
    store.calls.clear()
    store.faults = [
        Fault(at, verbs=("read_into",), after=chance.random() < 0.5)
        for at in range(400)
        if chance.random() < 0.33
    ]
    taker = Strict()
    reading(RetryingStore(store, Impatient(), "so"), wanted, taker).run()
    assert taker.bytes == content
    assert len(store.reads) < 2.5 * requests(wanted)


def test_a_store_that_stays_away_ends_it() -> None:
    """With its patience's last words; nothing was made up."""
    store = Reads()
    wanted, content = stored(store)
    store.calls.clear()
    store.faults = [Fault(at, verbs=("read_into",)) for at in range(10, 5000)]
    taker = Strict()
    with pytest.raises(UnavailableError, match="retried for 60 s"):
        reading(RetryingStore(store, Impatient(), "so"), wanted, taker).run()
    assert all(content[name] == held for name, held in taker.bytes.items())
    assert len(taker.bytes) < len(content)
