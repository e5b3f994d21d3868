"""Many requests in flight: bytes that are handed on are the ones that were saved, whatever the store does meanwhile."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotguard.hooks.checkpoints.flights import FRAMES, LEAST, SPARE
from spotguard.hooks.checkpoints.patience import PatientStore
from spotguard.hooks.checkpoints.ranges import Load, Wanted, plan
from spotguard.hooks.checkpoints.reading import READERS, Reading
from spotguard.hooks.checkpoints.taker import Span
from spotguard.hooks.format.manifest import Chunk
from spotguard.providers.errors import (
    CheckpointError,
    CorruptError,
    DeniedError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from spotguard.providers.stores.localfs import FileStore
from spotguard.providers.stores.store import BlobStore
from tests.fakes.clock import Impatient, ManualClock
from tests.fakes.reads import PATIENCE, Reads, ctrl_c_as_usual
from tests.fakes.store import Fault, Killed

#: Bytes of one request here: the largest chunk takes seven.
LIMIT = 100


class Frame:
    """Plain memory."""

    def __init__(self, size: int) -> None:
        self._view = memoryview(bytearray(size))

    def view(self, start: int, end: int) -> memoryview:
        return self._view[start:end]


class Kept:
    """Keeps what it is given, by the tensor's name."""

    def __init__(self) -> None:
        self.bytes: dict[str, bytes] = {}
        self.bad: list[str] = []
        self.gone: list[str] = []
        self.during: Callable[[], object] = lambda: None

    def take(self, wanted: Wanted, spans: Sequence[Span[Frame]]) -> None:
        self.during()
        assert wanted.name not in self.bytes, "once"
        self.bytes[wanted.name] = b"".join(bytes(span.view) for span in spans)

    def damaged(self, wanted: Wanted) -> None:
        self.bad.append(wanted.name)

    def lost(self, load: Load, error: StoreError) -> None:
        self.gone.append(load.ranges[0].key)


class Strict(Kept):
    """As a restore: damage is an error."""

    def damaged(self, wanted: Wanted) -> None:
        raise CheckpointError(wanted.name)

    def lost(self, load: Load, error: StoreError) -> None:
        raise error


def stored(store: BlobStore, *, seed: int = 0, objects: int = 8) -> tuple[list[Wanted], dict[str, bytes]]:
    """Objects of chunks of all sizes, some of them wanted; and what each holds."""
    chance = random.Random(seed)
    wanted: list[Wanted] = []
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
                wanted.append(Wanted(key, chunk, 1, f"{key}-{index}"))
                content[f"{key}-{index}"] = part
        store.put(key, memoryview(bytes(data)))
    return wanted, content


def loads_of(wanted: Sequence[Wanted]) -> list[Load]:
    return plan(wanted, LIMIT, 5)


def requests(wanted: Sequence[Wanted]) -> int:
    return sum(len(load.ranges) for load in loads_of(wanted))


def reading(store: BlobStore, wanted: Sequence[Wanted], taker: Kept, **options: object) -> Reading[Frame]:
    return Reading(store, loads_of(wanted), Frame, taker, **options)  # type: ignore[arg-type]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("spotguard-reader")]


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    yield
    for thread in readers():
        thread.join(PATIENCE)
        assert not thread.is_alive()


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
    """Some hundred requests, some of large chunks: the memory is that of `FRAMES` and no more."""
    store = Reads()
    wanted, content = stored(store, objects=60)
    assert requests(wanted) > 4 * FRAMES
    taker = Strict()
    run = reading(store, wanted, taker)
    run.run()
    assert 0 < run.frames <= FRAMES
    assert taker.bytes == content


# --- for a while -----------------------------------------------------------------------------------------------


def test_who_was_handed_bytes_is_let_go_of_after_an_error() -> None:
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
    reading(PatientStore(store, Impatient(), "so"), wanted, taker).run()
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
    reading(PatientStore(store, Impatient(), "so"), wanted, taker).run()
    assert taker.bytes == content
    assert len(store.reads) < 2.5 * requests(wanted)


def test_a_store_that_stays_away_ends_it() -> None:
    """With its patience's last words; nothing was made up."""
    store = Reads()
    wanted, content = stored(store)
    store.calls.clear()
    store.faults = [Fault(at, verbs=("read_into",)) for at in range(10, 5000)]
    taker = Strict()
    with pytest.raises(UnavailableError, match="asked again for 60 s"):
        reading(PatientStore(store, Impatient(), "so"), wanted, taker).run()
    assert all(content[name] == held for name, held in taker.bytes.items())
    assert len(taker.bytes) < len(content)


# --- wrong bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(0, 60, 3))
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


def test_of_a_load_with_damage_a_restore_is_given_nothing() -> None:
    """All of its chunks are verified before the first of them is handed on."""
    store = Reads()
    store.put("run/a", memoryview(bytes(range(30))))
    part = [bytes(range(n, n + 10)) for n in (0, 10, 20)]
    wanted = [
        Wanted("run/a", Chunk((0,), (10,), 0, n * 10, n * 10 + 10, zlib.crc32(part[n])), 1, f"t{n}")
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

    def none(size: int) -> Frame:
        raise MemoryError(f"{size} bytes")

    with pytest.raises(MemoryError):
        Reading(store, loads_of(wanted), none, Strict()).run()
    assert store.reads == []


# --- one that hangs --------------------------------------------------------------------------------------------


@contextmanager
def hanging(store: Reads) -> Iterator[None]:
    """What is held is let go in the end, and the threads with it."""
    try:
        yield
    finally:
        store.go.set()


def in_background(run: Reading[Frame]) -> tuple[threading.Thread, list[BaseException]]:
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
    assert run.frames <= FRAMES


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
    assert run.frames <= FRAMES


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
    assert run.frames <= FRAMES


def test_of_two_sent_one_may_fail() -> None:
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


# --- Ctrl-C ----------------------------------------------------------------------------------------------------


def test_after_ctrl_c_nobody_writes() -> None:
    """It waits for who hands bytes on, leaves behind who hangs in the store, and what comes later goes nowhere."""
    store, clock = Reads(), ManualClock()
    wanted, _ = stored(store)
    store.hold = lambda number, key, start: number >= 20
    taker = Strict()
    handing, may = threading.Event(), threading.Event()

    def during() -> None:
        handing.set()
        assert may.wait(PATIENCE)

    taker.during = during

    def ctrl_c(done: int, total: int) -> None:
        if handing.is_set():
            raise KeyboardInterrupt

    run = reading(store, wanted, taker, progress=ctrl_c, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        assert handing.wait(PATIENCE)
        pass_time(clock, lambda: run._over)
        thread.join(0.05)
        assert thread.is_alive(), "somebody still hands bytes on"
        may.set()
        thread.join(PATIENCE)
        assert [type(error) for error in errors] == [KeyboardInterrupt]
        before = dict(taker.bytes)
        assert store.held.wait(PATIENCE)
    for each in readers():
        each.join(PATIENCE)
    assert taker.bytes == before


def test_what_is_verified_after_ctrl_c_is_handed_on_to_nobody() -> None:
    """It was read once more when it was all over."""
    store, clock = Reads(), ManualClock()
    wanted, _ = stored(store, objects=1)
    wanted = [min(wanted, key=lambda each: each.chunk.end - each.chunk.start)]
    store.spoil = lambda number, key, start: number == 0
    store.hold = lambda number, key, start: number == 1
    taker = Strict()

    def ctrl_c(done: int, total: int) -> None:
        if store.held.is_set():
            raise KeyboardInterrupt

    run = reading(store, wanted, taker, progress=ctrl_c, clock=clock)
    with hanging(store):
        thread, errors = in_background(run)
        pass_time(clock, lambda: not thread.is_alive())
        assert [type(error) for error in errors] == [KeyboardInterrupt]
    for each in readers():
        each.join(PATIENCE)
    assert len(store.reads) == 2
    assert taker.bytes == {}


def test_a_second_ctrl_c_waits_as_well() -> None:
    """Real signals on the main thread: impatience writes into no tensor."""
    store = Reads()
    wanted, _ = stored(store)
    taker = Strict()
    handing, ended, returned = threading.Event(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def during() -> None:
        if handing.is_set():
            return
        handing.set()
        for _ in range(3):
            interrupt()
            end = time.monotonic() + PATIENCE
            while not run._over and time.monotonic() < end:
                threading.Event().wait(0.001)
        seen.append(run._over and not returned.wait(0.1))
        ended.set()

    taker.during = during
    run = reading(store, wanted, taker)

    def to_its_end() -> None:
        try:
            run.run()
        finally:
            returned.set()

    with ctrl_c_as_usual() as interrupt, pytest.raises(KeyboardInterrupt):
        to_its_end()
    assert seen == [True]
    assert ended.is_set()
