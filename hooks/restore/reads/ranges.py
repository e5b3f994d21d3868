"""The requests of a read: which bytes each of them asks for, and in which order. Values in, values out.

A request holds whole chunks, or a part of a chunk that is larger than a request. Neighbouring chunks of an object share one
request. So do chunks with a small gap between them, if the gap's bytes cost less than another request. The largest requests
come first, so that the last ones in flight are small.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from ...checkpoint.format.codec import UnsupportedFormatError
from ...checkpoint.format.manifest import Chunk

#: Bytes of one request. S3 advises ranges of 8 to 16 MiB. At the 50 to 95 MB/s of one connection this takes a tenth of a
#: second. The first byte's 10 to 30 ms then count little, and a request that is sent again costs little.
REQUEST_BYTES = 8 * 2**20
#: Largest gap in bytes that a request reads without need: 0.8 ms of one connection. Another request costs 1 to 2 ms of this
#: machine's CPU in an SDK, and the store's price.
GAP_BYTES = 64 * 2**10
#: Most requests for one chunk. A chunk that spotguard writes holds 32 MiB and takes 4 to 9, depending on its rows.
MOST_PARTS = 24


class WantedChunk(NamedTuple):
    """A chunk to read."""

    key: str
    chunk: Chunk
    #: Bytes of one element, as stored.
    itemsize: int
    #: Name of the tensor; "" for an object's header.
    name: str


class ByteRange(NamedTuple):
    """One request: bytes of one object. If a chunk takes several requests, the box of the chunk that these bytes fill."""

    key: str
    start: int
    end: int
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """The unit of verification: one request with whole chunks in it, or one chunk with its requests."""

    ranges: tuple[ByteRange, ...]
    chunks: tuple[WantedChunk, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the requests ask for, gaps included."""
        return sum([each.end - each.start for each in self.ranges])


def plan(wanted: Iterable[WantedChunk], limit: int = REQUEST_BYTES, gap: int = GAP_BYTES) -> list[ReadBatch]:
    """Return the batches for these chunks, largest first, with each chunk in exactly one batch. Empty chunks need none.

    Args:
        wanted: the chunks to read.
        limit: most bytes of one request.
        gap: largest gap in bytes between two chunks of one request.

    Raises:
        UnsupportedFormatError: a chunk is larger than this version can hold in memory to verify it.
    """
    loads = []
    run: list[WantedChunk] = []
    for each in sorted(wanted, key=lambda each: (each.key, each.chunk.start, each.chunk.end)):
        chunk = each.chunk
        if chunk.start == chunk.end:
            continue
        if chunk.end - chunk.start > limit:
            loads.append(_cut(each, limit))
            continue
        if run and (
            run[0].key != each.key
            or chunk.start - run[-1].chunk.end > gap
            or chunk.end - run[0].chunk.start > limit
        ):
            loads.append(_joined(run))
            run = []
        run.append(each)
    if run:
        loads.append(_joined(run))
    loads.sort(key=lambda load: (-load.nbytes, load.ranges[0]))
    return loads


def _joined(run: Sequence[WantedChunk]) -> ReadBatch:
    end = max(each.chunk.end for each in run)
    return ReadBatch((ByteRange(run[0].key, run[0].chunk.start, end),), tuple(run))


def _cut(each: WantedChunk, limit: int) -> ReadBatch:
    chunk, at = each.chunk, each.chunk.start
    ranges = []
    for offsets, sizes in _boxes(chunk.sizes, limit // each.itemsize):
        end = at + prod(sizes) * each.itemsize
        ranges.append(ByteRange(each.key, at, end, offsets, sizes))
        at = end
    if len(ranges) > MOST_PARTS:
        raise UnsupportedFormatError(
            f"{each.key}: {each.name} has a chunk of {chunk.end - chunk.start >> 20} MiB, which is too "
            "large for this version to verify: read it with a newer spotguard"
        )
    return ReadBatch(tuple(ranges), (each,))


def _boxes(sizes: tuple[int, ...], budget: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (corner, sizes) of boxes of about equal size, at most `budget` elements, that tile `sizes` in row-major order."""
    if prod(sizes) <= budget:
        yield (0,) * len(sizes), sizes
        return
    row = prod(sizes[1:])
    if row <= budget:
        most = budget // row
        rows = -(-sizes[0] // -(-sizes[0] // most))
        for first in range(0, sizes[0], rows):
            yield (first, *(0,) * (len(sizes) - 1)), (min(rows, sizes[0] - first), *sizes[1:])
        return
    for index in range(sizes[0]):
        for corner, inner in _boxes(sizes[1:], budget):
            yield (index, *corner), (1, *inner)


# The requests of a read that are in flight, their buffers, and the request that lags: pure decisions, under the caller's lock.
#
# A request begins when a buffer is free for it, so the number of buffers alone bounds the memory. A request that lags far behind
# its peers is sent a second time. It gets another buffer, since the first call may still write into its own. The first answer
# counts. The other buffer becomes free when the store's call returns.

#: Frames of requests that count. As many as the parts of the largest chunk, which could otherwise never be complete.
ROOM = MOST_PARTS
#: Further buffers, for requests that are sent a second time, or left behind in a store that hangs.
SPARE = 4
#: All buffers: with 8 MiB each 224 MiB, well within the 512 MiB of law 9, whatever the state's size.
MAX_BUFFERS = ROOM + SPARE
#: A request lags if it takes LAG times the median of its peers and at least LEAST seconds: less is a store's normal spread.
LAG, LEAST = 5.0, 1.0
#: Number of recent peers, the fewest of them for a median, and their least size as a share of the request's. On a slow link
#: a request of 8 MiB takes ten times as long as one of a few KiB without lagging. To send it again would slow its own link.
_PEERS, _ENOUGH, _PEER = 32, 3, 0.5

F = TypeVar("F")


@dataclass(slots=True, eq=False)
class ReadRequest(Generic[F]):
    """One request, its state, and its bytes once they have arrived."""

    range: ByteRange
    #: Index of its batch.
    load: int
    began: float = 0.0
    #: How many copies of it are in flight.
    flying: int = 0
    twice: bool = False
    #: The buffer with its bytes; None until they have arrived.
    buffer: F | None = None


class RequestsInFlight(Generic[F]):
    """The requests of some batches, in their order."""

    def __init__(self, loads: Sequence[ReadBatch]) -> None:
        self.pieces = [
            [ReadRequest[F](each, index) for each in load.ranges] for index, load in enumerate(loads)
        ]
        self._waiting = deque(piece for pieces in self.pieces for piece in pieces)
        self._missing = [len(pieces) for pieces in self.pieces]
        self._flying: dict[ReadRequest[F], None] = {}
        #: Bytes and seconds of the requests that arrived last.
        self._took: deque[tuple[int, float]] = deque(maxlen=_PEERS)
        self._held = 0
        self._surplus = 0

    @property
    def in_use(self) -> int:
        """Number of buffers that a thread may write to or read from: never more than `MAX_BUFFERS`."""
        return self._held + self._surplus

    def begin(self, now: float) -> ReadRequest[F] | None:
        """Return the next request, which the caller must send, or None if there is no request or no buffer for it."""
        if not self._waiting or self._held == ROOM:
            return None
        piece = self._waiting.popleft()
        self._held += 1
        piece.began, piece.flying = now, 1
        self._flying[piece] = None
        return piece

    def laggard(self, now: float) -> ReadRequest[F] | None:
        """Return the oldest lagging request, which the caller must send a second time, or None. No request comes twice."""
        if self._surplus == SPARE:
            return None
        for piece in self._flying:  # oldest first
            if piece.twice or now - piece.began < self._usual(piece):
                continue
            piece.twice = True
            piece.flying += 1
            self._surplus += 1
            return piece
        return None

    def _usual(self, piece: ReadRequest[F]) -> float:
        """Return the seconds after which a request lags; infinity while too few peers have arrived."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * _bytes(piece)]
        return max(LEAST, LAG * median(peers)) if len(peers) >= _ENOUGH else math.inf

    def arrived(self, piece: ReadRequest[F], buffer: F, now: float) -> bool:
        """Note that the bytes are in `buffer`. False: another copy arrived before, and the buffer is the caller's again."""
        piece.flying -= 1
        if piece.buffer is not None:
            self._surplus -= 1
            return False
        piece.buffer = buffer
        self._took.append((_bytes(piece), now - piece.began))
        del self._flying[piece]
        self._missing[piece.load] -= 1
        return True

    def counts(self, piece: ReadRequest[F]) -> bool:
        """Return whether a failure counts: no other copy of the request brings its bytes or has brought them.

        The buffer of the failed copy is the caller's again. If the failure counts, the request still stands as in flight, and
        the caller ends this request or the whole read.
        """
        if piece.buffer is None and piece.flying == 1:
            return True
        piece.flying -= 1
        self._surplus -= 1
        return False

    def complete(self, piece: ReadRequest[F]) -> bool:
        """Return whether all requests of its batch have arrived."""
        return not self._missing[piece.load]

    def done(self, load: int) -> list[F]:
        """End a batch and return its buffers, which are the caller's again."""
        self._held -= len(self.pieces[load])
        return [piece.buffer for piece in self.pieces[load] if piece.buffer is not None]


def _bytes(piece: ReadRequest[F]) -> int:
    return piece.range.end - piece.range.start
