"""Bytes that are wrong, gone or refused are handed on to nobody."""

from __future__ import annotations

import zlib

import pytest

from spotguard.hooks.checkpoint.format.manifest import Chunk
from spotguard.hooks.commit.upload.workers import PlainBuffer
from spotguard.hooks.restore.reads.fetch import READERS, Fetch
from spotguard.hooks.restore.reads.ranges import WantedChunk
from spotguard.providers.errors import CheckpointError, CorruptError, DeniedError, NotFoundError, StoreError
from tests.cases import cases
from tests.fakes.reads import Reads
from tests.fakes.store import Fault, Killed
from tests.hooks.restore.reads.many_reads import (
    Kept,
    Strict,
    loads_of,
    nobody_stays,
    readers,
    reading,
    requests,
    stored,
)

__all__ = ["nobody_stays"]


@cases("at", range(0, 60, 3))
def test_a_bit_that_flips_on_its_way_is_read_once_more(at: int) -> None:
    """At any request: only the chunk that it is in is read again."""
    store = Reads()
    wanted, content = stored(store)
    count = requests(wanted)
    store.spoil = lambda number, key, start: number == at % count
    taker = Strict()
    reading(store, wanted, taker).run()
    assert taker.bytes == content
    largest = max(each.chunk.end - each.chunk.start for each in wanted)
    assert store.nbytes <= sum(load.nbytes for load in loads_of(wanted)) + largest


def test_a_body_that_is_cut_short_on_its_way_is_asked_for_once_more() -> None:
    store = Reads()
    wanted, content = stored(store)
    store.calls.clear()
    store.faults = [Fault(3, verbs=("read_into",), error=lambda: CorruptError("cut short"))]
    taker = Strict()
    reading(store, wanted, taker).run()
    assert taker.bytes == content
    assert len(store.reads) == requests(wanted) + 1


def test_a_damaged_chunk_is_handed_on_to_nobody() -> None:
    """Each one in its turn; its neighbours in the same request are sound, for who only reports."""
    wanted, content = stored(Reads())
    for each in wanted:
        store = Reads()
        stored(store)
        store.corrupt(each.key, each.chunk.end - 1, 128)
        taker = Kept()
        reading(store, wanted, taker).run()
        assert taker.bad == [each.name]
        assert taker.bytes == {name: held for name, held in content.items() if name != each.name}
        with pytest.raises(CheckpointError, match=each.name):
            reading(store, wanted, Strict()).run()


def test_a_damaged_batch_hands_nothing_to_the_restore() -> None:
    """All of its chunks are verified before the first of them is handed on."""
    store = Reads()
    store.put("run/a", memoryview(bytes(range(30))))
    part = [bytes(range(n, n + 10)) for n in (0, 10, 20)]
    wanted = [
        WantedChunk("run/a", Chunk((0,), (10,), 0, n * 10, n * 10 + 10, zlib.crc32(part[n])), 1, f"t{n}")
        for n in range(3)
    ]
    store.corrupt("run/a", 29)
    taker = Strict()
    with pytest.raises(CheckpointError):
        reading(store, wanted, taker).run()
    assert taker.bytes == {}


@pytest.mark.parametrize("loss", ["gone", "short"])
def test_an_object_that_is_gone_or_short_is_lost(loss: str) -> None:
    """A report goes on with the others; a restore ends."""
    store = Reads()
    wanted, content = stored(store)
    key = wanted[0].key
    if loss == "gone":
        del store.objects[key]
    else:
        store.objects[key] = store.objects[key][:9]
    taker = Kept()
    reading(store, wanted, taker).run()
    assert set(taker.gone) == {key}
    if loss == "gone":
        asked = sum(each.key == key for load in loads_of(wanted) for each in load.ranges)
        assert sum(read[0] == key for read in store.reads) == asked, (
            "it does not come back by being asked again"
        )
    assert taker.bytes == {name: held for name, held in content.items() if not name.startswith(key)}
    with pytest.raises(NotFoundError if loss == "gone" else CorruptError):
        reading(store, wanted, Strict()).run()


@pytest.mark.parametrize("error", [DeniedError, StoreError, Killed, MemoryError])
def test_an_error_ends_it_and_nothing_more_is_begun(error: type[BaseException]) -> None:
    """As it is, on the thread that waits."""
    store = Reads()
    wanted, _ = stored(store, objects=20)
    store.calls.clear()
    store.faults = [Fault(at, verbs=("read_into",), error=lambda: error("no")) for at in range(1000)]
    taker = Kept()
    with pytest.raises(error, match="no"):
        reading(store, wanted, taker).run()
    assert taker.bytes == {}
    assert len(store.reads) <= READERS
    assert not readers()


def test_a_frame_that_cannot_be_had_ends_it() -> None:
    """No thread waits for one for ever."""
    store = Reads()
    wanted, _ = stored(store)

    def none(size: int) -> PlainBuffer:
        raise MemoryError(f"{size} bytes")

    with pytest.raises(MemoryError):
        Fetch(store, loads_of(wanted), none, Strict()).run()
    assert store.reads == []
