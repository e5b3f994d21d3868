"""`Fetch`: it sends a plan's requests, many in flight, and verifies each chunk before a sink gets its bytes (law 6).

A restore and a verification use it. The caller waits while reading threads read. `run` leaves behind a thread that hangs in a
store, with its buffer, and ignores the bytes that it reads later. `run` waits for a thread that passes bytes to the sink. So when
`run` returns, at its end, by an error or by Ctrl-C, no thread writes into a tensor.

The given store retries a transient failure (`retrying_store`): one request alone, while the others go on. Wrong bytes are read
once more before they count as damage, since a bit may have flipped on its way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol

from ....providers.clock import Clock, SystemClock
from ....providers.errors import CheckpointError, CorruptError, NotFoundError, StoreError
from ....providers.stores.base import BlobStore
from ...checkpoint.format import crc
from ...commit.upload.workers import B
from .ranges import SPARE, ReadBatch, ReadRequest, RequestsInFlight, WantedChunk

#: Called with (bytes read, bytes in total), on the thread that waits.
Progress = Callable[[int, int], None]

#: Requests in flight. One connection gives 50 to 95 MB/s; twelve reach the 1 GB/s that one Python process can take.
READERS = 12
#: Seconds between two checks of the progress and of lagging requests.
_LOOK = 0.25
#: Seconds for threads to end after an error, so that the next read has the store for itself.
_LEAVING = 1.0


class Fetch(Generic[B]):
    """One read of some batches.

    Args:
        store: the store with the objects; it retries transient failures by itself.
        loads: batches from `ranges.plan`.
        make: returns a buffer of the given number of bytes.
        taker: the sink for the verified bytes.
        progress: called with (bytes read, bytes in total).
        clock: measures which request lags behind the others.
        timeout: seconds for each request.
        readers: requests in flight, of which none is sent again; None: as many as the store has use for.
    """

    def __init__(
        self,
        store: BlobStore,
        loads: Sequence[ReadBatch],
        make: Callable[[int], B],
        taker: ChunkSink[B],
        *,
        progress: Progress | None = None,
        clock: Clock | None = None,
        timeout: float | None = None,
        readers: int | None = None,
    ) -> None:
        self._readers = readers
        self._store = store
        self._loads = loads
        self._make = make
        self._taker = taker
        self._progress = progress
        self._clock = clock or SystemClock()
        self._timeout = timeout
        self._size = max((each.end - each.start for load in loads for each in load.ranges), default=0)
        self._total = sum(load.nbytes for load in loads)
        #: Guards all fields below. A thread that needs a buffer or a request waits on it.
        self._changed = threading.Condition()
        self._flights = RequestsInFlight[B](loads)
        self._again: list[ReadRequest[B]] = []
        self._free: list[B] = []
        self._lost: set[int] = set()
        self._left = len(loads)
        self._bytes = 0
        self._handing = 0
        self._over = not loads
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        #: Threads that are inside a call of the store.
        self._inside: set[threading.Thread] = set()
        #: Threads that have ended.
        self._gone: set[threading.Thread] = set()
        self._news = threading.Event()
        #: Number of buffers made, which tests compare with `ranges.MAX_BUFFERS`.
        self.buffers = 0

    def run(self) -> None:
        """Read everything.

        Raises:
            StoreError: the store failed.
            Exception: any error that the sink raised.
        """
        try:
            readers = self._readers or _readers(self._store.url)
            for _ in range(min(readers, sum(len(load.ranges) for load in self._loads))):
                self._start()
            self._watch()
        finally:
            self._leave()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame: a cycle, which would keep the memory that was to be filled

    # --- the thread that waits ---

    def _watch(self) -> None:
        while not self._over:
            self._clock.wait(self._news, _LOOK)
            self._news.clear()
            self._hurry()
            self._tell()
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._bytes, self._total)

    def _hurry(self) -> None:
        """Send a lagging request again, on a new thread: the existing threads may all hang."""
        if self._readers is not None:
            return  # a process that is paused lags without a fault of the store
        with self._changed:
            piece = self._flights.laggard(self._clock.monotonic())
            if piece is None:
                return
            self._again.append(piece)
            self._changed.notify()
            hands = len(self._threads) - len(self._gone)
        if hands < READERS + SPARE:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"spotguard-reader-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)  # added first: Ctrl-C may come while the thread starts
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            if not self._threads:
                raise
            # The machine is out of threads, so the existing ones do the work.

    def _leave(self) -> None:
        """Begin nothing more, and wait for threads that write into tensors. A second Ctrl-C does not shorten the wait."""
        interrupted: KeyboardInterrupt | None = None
        while True:
            try:
                with self._changed:
                    self._over = True
                    self._changed.notify_all()
                    self._changed.wait_for(
                        lambda: not self._handing
                    )  # no timeout: a copy of memory always ends
                    if self._error is not None:
                        self._changed.wait_for(lambda: len(self._gone) == len(self._threads), _LEAVING)
                    near = [each for each in self._threads if each not in self._inside and each.is_alive()]
                for thread in near:
                    thread.join(_LEAVING)
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    # --- its threads ---

    def _work(self) -> None:
        try:
            while (begun := self._next()) is not None:
                self._read(*begun)
                del begun
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            with self._changed:
                if not self._over:
                    self._error, self._over = error, True
        finally:
            with self._changed:
                self._gone.add(threading.current_thread())
                self._changed.notify_all()
            self._news.set()

    def _next(self) -> tuple[ReadRequest[B], B] | None:
        """Wait for a request to send and a buffer for it, and return both; None when the read is over."""
        with self._changed:
            while True:
                if self._over:
                    return None
                piece = self._again.pop() if self._again else self._flights.begin(self._clock.monotonic())
                if piece is None:
                    self._changed.wait()
                elif piece.buffer is None:
                    break
                else:
                    self._flights.counts(piece)  # this lagging request arrived before it was sent again
            if self._free:
                return piece, self._free.pop()
            self.buffers += 1
        return piece, self._make(self._size)

    def _read(self, piece: ReadRequest[B], buffer: B) -> None:
        key, start, end = piece.range[:3]
        error: StoreError | None = None
        try:
            self._fetch(key, start, buffer.view(0, end - start))
        except StoreError as failed:
            error = failed
        with self._changed:
            if self._over:
                return
            if error is not None:
                if not self._flights.counts(piece):
                    self._give_back([buffer])
                    return
                self._lost.add(piece.load)
            if not self._flights.arrived(piece, buffer, self._clock.monotonic()):
                self._give_back([buffer])
                return
            complete = self._flights.complete(piece)
        if error is not None:
            self._lose(piece.load, error)
        if complete:
            self._finish(piece.load)

    def _finish(self, index: int) -> None:
        """Verify every chunk of a batch whose bytes have all arrived, then pass the sound ones to the sink."""
        load = self._loads[index]
        buffers = [piece.buffer for piece in self._flights.pieces[index] if piece.buffer is not None]
        sound = []
        for wanted in load.chunks if index not in self._lost else ():
            spans = list(placed(load, wanted, buffers))
            try:
                if self._sound(wanted, spans):
                    sound.append((wanted, spans))
                else:
                    self._taker.damaged(wanted)
            except StoreError as error:
                self._lose(index, error)
                break
        with self._handed() as on:
            for wanted, spans in sound if on else ():
                self._taker.take(wanted, spans)
        with self._changed:
            self._give_back(self._flights.done(index))
            self._bytes += load.nbytes
            self._left -= 1
            if not self._left:
                self._over = True
                self._changed.notify_all()
        self._news.set()

    def _sound(self, wanted: WantedChunk, spans: Sequence[BufferSpan[B]]) -> bool:
        """Return whether the bytes are the saved ones. If they differ, read them once more first."""
        if crc32(spans) == wanted.chunk.crc32:
            return True
        at = wanted.chunk.start
        for span in spans:
            self._fetch(wanted.key, at, span.view)
            at += span.end - span.start
        return crc32(spans) == wanted.chunk.crc32

    def _fetch(self, key: str, start: int, view: memoryview) -> None:
        me = threading.current_thread()
        with self._changed:
            self._inside.add(me)
        try:
            try:
                self._store.read_into(key, start, view, timeout=self._timeout)
            except CorruptError:  # the answer may have been cut short on its way
                self._store.read_into(key, start, view, timeout=self._timeout)
        finally:
            with self._changed:
                self._inside.discard(me)

    def _lose(self, index: int, error: StoreError) -> None:
        if not isinstance(error, (NotFoundError, CorruptError)):
            raise error
        self._taker.lost(self._loads[index], error)

    @contextmanager
    def _handed(self) -> Iterator[bool]:
        """Yield whether bytes may go to the sink. If they may, `_leave` waits until the `with` block has ended."""
        with self._changed:
            on = not self._over
            self._handing += on
        try:
            yield on
        finally:
            with self._changed:
                self._handing -= on
                self._changed.notify_all()

    def _give_back(self, buffers: Sequence[B]) -> None:
        self._free += buffers
        self._changed.notify_all()


def _readers(url: str) -> int:
    """Return how many requests are in flight at once. A local directory is limited by the cores, which copy and verify."""
    return min(READERS, max(2, os.cpu_count() or 1)) if url.startswith("file:") else READERS


# --- sinks ---
#
# Sinks, which take the verified bytes of a read, and the spans of reused buffers that hold a chunk's bytes.


@dataclass(frozen=True, slots=True)
class BufferSpan(Generic[B]):
    """Bytes of a chunk in a buffer, with the box of the chunk that these bytes fill."""

    buffer: B
    start: int
    end: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def view(self) -> memoryview:
        return self.buffer.view(self.start, self.end)


class ChunkSink(Protocol[B]):
    """The taker of the verified bytes. Reading threads call it, several at once; an exception from it ends the read."""

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[B]]) -> None:
        """Take a chunk's bytes, whose checksum is the saved one. The buffers are reused after the call."""
        ...

    def damaged(self, wanted: WantedChunk) -> None:
        """Take note that the chunk's bytes were wrong in two reads."""
        ...

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        """Take note that an object of the batch is gone, or was too short in two reads."""
        ...


class StrictSink:
    """A base for sinks that need every byte: it raises if a chunk is damaged or lost."""

    __slots__ = ()

    def damaged(self, wanted: WantedChunk) -> NoReturn:
        chunk = wanted.chunk
        raise CheckpointError(
            f"{wanted.key}: bytes {chunk.start} to {chunk.end} ({wanted.name}) are damaged: their "
            "checksum differs from the saved one"
        ).about([wanted.key])

    def lost(self, load: ReadBatch, error: StoreError) -> NoReturn:
        raise error.about({each.key for each in load.ranges})


def placed(load: ReadBatch, wanted: WantedChunk, buffers: Sequence[B]) -> Iterator[BufferSpan[B]]:
    """Yield the spans of the buffers that hold a chunk's bytes, in order.

    Args:
        load: the batch with the chunk.
        buffers: the buffers that hold the batch's requests, one for each.
    """
    chunk = wanted.chunk
    if len(load.ranges) == 1:
        at = chunk.start - load.ranges[0].start
        yield BufferSpan(buffers[0], at, at + chunk.end - chunk.start, (0,) * len(chunk.sizes), chunk.sizes)
        return
    for buffer, each in zip(buffers, load.ranges, strict=True):
        yield BufferSpan(buffer, 0, each.end - each.start, each.offsets, each.sizes)


def crc32(spans: Sequence[BufferSpan[B]]) -> int:
    """Return the CRC32 of all spans, one after the other. It releases the GIL."""
    checksum = 0
    for span in spans:
        checksum = crc.crc32(span.view, checksum)
    return checksum
