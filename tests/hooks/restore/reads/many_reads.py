"""What the tests of many requests in flight share: objects to read, who takes them, and a restore on a thread of its own."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from spotguard.hooks.checkpoint.format.manifest import Chunk
from spotguard.hooks.commit.upload.workers import PlainBuffer
from spotguard.hooks.restore.reads.fetch import BufferSpan, Fetch
from spotguard.hooks.restore.reads.ranges import LEAST, ReadBatch, WantedChunk, plan
from spotguard.providers.errors import CheckpointError, StoreError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.clock import ManualClock
from tests.fakes.reads import PATIENCE, Reads

#: Bytes of one request here: the largest chunk takes seven.
LIMIT = 100


class Kept:
    """Keeps what it is given, by the tensor's name."""

    def __init__(self) -> None:
        self.bytes: dict[str, bytes] = {}
        self.bad: list[str] = []
        self.gone: list[str] = []
        self.during: Callable[[], object] = lambda: None

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[PlainBuffer]]) -> None:
        self.during()
        assert wanted.name not in self.bytes, "once"
        self.bytes[wanted.name] = b"".join(bytes(span.view) for span in spans)

    def damaged(self, wanted: WantedChunk) -> None:
        self.bad.append(wanted.name)

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        self.gone.append(load.ranges[0].key)


class Strict(Kept):
    """As a restore: damage is an error."""

    def damaged(self, wanted: WantedChunk) -> None:
        raise CheckpointError(wanted.name)

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        raise error


def stored(
    store: BlobStore, *, seed: int = 0, objects: int = 8
) -> tuple[list[WantedChunk], dict[str, bytes]]:
    """Objects of chunks of all sizes, some of them wanted; and what each holds."""
    chance = random.Random(seed)
    wanted: list[WantedChunk] = []
    content: dict[str, bytes] = {}
    for number in range(objects):
        key, data = f"run/{number:04d}", bytearray(chance.randbytes(8))
        for index, rows in enumerate(
            [chance.choice([1, 3, 20, 90]) for _ in range(6)] + [350 // (number + 1)]
        ):
            part = chance.randbytes(rows * 2)
            chunk = Chunk((0, 0), (rows, 2), 0, len(data), len(data) + len(part), zlib.crc32(part))
            data += part
            if index != 3:
                wanted.append(WantedChunk(key, chunk, 1, f"{key}-{index}"))
                content[f"{key}-{index}"] = part
        store.put(key, memoryview(bytes(data)))
    return wanted, content


def loads_of(wanted: Sequence[WantedChunk]) -> list[ReadBatch]:
    return plan(wanted, LIMIT, 5)


def requests(wanted: Sequence[WantedChunk]) -> int:
    return sum(len(load.ranges) for load in loads_of(wanted))


def reading(
    store: BlobStore, wanted: Sequence[WantedChunk], taker: Kept, **options: object
) -> Fetch[PlainBuffer]:
    """Time stands still, unless a clock is given: a busy machine makes no request lag, and none is sent again for that."""
    options = {"clock": ManualClock()} | options
    return Fetch(store, loads_of(wanted), PlainBuffer, taker, **options)  # type: ignore[arg-type]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("spotguard-reader")]


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    for thread in readers():
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def hanging(store: Reads) -> Iterator[None]:
    """What is held is let go in the end, and the threads with it."""
    try:
        yield
    finally:
        store.go.set()


def in_background(run: Fetch[PlainBuffer]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def body() -> None:
        try:
            run.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    thread = threading.Thread(target=body, name="restoring")
    thread.start()
    return thread, errors


def pass_time(clock: ManualClock, until: Callable[[], bool]) -> None:
    """Let the clock go on until it is so."""
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end
        if clock.wait_for_waiters(1, 0.01):
            clock.advance(LEAST)
