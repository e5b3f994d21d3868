"""Chunks into requests: which bytes are asked for at once, and in which order. Values in, values out.

A request holds whole chunks, or a part of one that is larger than a request. What lies side by side in an object comes
in one request; so does what a small gap parts, where the gap's bytes cost less than another request. The largest come
first: what is on its way last is small.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from ..checkpoint.format.codec import NewerFormatError
from ..checkpoint.format.manifest import Chunk

#: Bytes of one request. S3 advises ranges of 8 to 16 MiB; at the 50 to 95 MB/s of one connection this is a tenth of a
#: second, so the first byte's 10 to 30 ms do not count much and a request that is sent again costs little.
REQUEST_BYTES = 8 * 2**20
#: Bytes that nobody wants and that are read all the same: 0.8 ms of one connection, where a request costs 1 to 2 ms of
#: this machine's CPU in an SDK, and the store's price.
GAP_BYTES = 64 * 2**10
#: Requests that one chunk may take. Ours hold 32 MiB and take 4 to 9, by how its rows fall.
MOST_PARTS = 24


class WantedChunk(NamedTuple):
    """A chunk that is to be read."""

    key: str
    chunk: Chunk
    #: Bytes of one element, as stored.
    itemsize: int
    #: The tensor's; "" for an object's header.
    name: str


class ByteRange(NamedTuple):
    """One request: bytes of one object, and of a chunk that takes several, the box in it that they are."""

    key: str
    start: int
    end: int
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """What is verified at once: one request with whole chunks in it, or one chunk and its requests."""

    ranges: tuple[ByteRange, ...]
    chunks: tuple[WantedChunk, ...]

    @property
    def nbytes(self) -> int:
        """What its requests ask for, gaps included."""
        return sum([each.end - each.start for each in self.ranges])


def plan(wanted: Iterable[WantedChunk], limit: int = REQUEST_BYTES, gap: int = GAP_BYTES) -> list[ReadBatch]:
    """The requests for these chunks, largest load first, each chunk in exactly one load. Chunks without bytes need none.

    Raises:
        NewerFormatError: a chunk is larger than this version can hold before it is verified.
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
        raise NewerFormatError(
            f"{each.key}: {each.name} has a chunk of {(chunk.end - chunk.start) >> 20} MiB, "
            f"which this version cannot hold to verify it: read it with a newer spotguard"
        )
    return ReadBatch(tuple(ranges), (each,))


def _boxes(sizes: tuple[int, ...], budget: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes of about equal size and at most `budget` elements that tile `sizes` in row-major order: (corner, sizes)."""
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


# Which requests of a restore are in flight, in how many frames, and which lags behind: decided by values, under the
# caller's lock.
#
# A request begins when a frame is free for it, so memory is bounded by the number of frames and by nothing else. One that
# lags far behind its peers is sent a second time into a frame of its own, since the first may write into its frame at any
# time. Whichever arrives first counts; the other's frame comes back when the store lets it go.

#: Frames of requests that count. As many as the parts of the largest chunk, or it could never be put together.
ROOM = MOST_PARTS
#: Frames, and so requests, beyond: sent a second time, or left behind in a store that hangs.
SPARE = 4
#: All of them: with 8 MiB each 224 MiB, well within the 512 MiB of law 9, whatever the state's size.
FRAMES = ROOM + SPARE
#: A request lags when it takes so many times the median of its peers, and so many seconds: less is a store's own spread.
LAG, LEAST = 5.0, 1.0
#: Peers that say what is usual, and how many it takes. They are half as large at least: on a slow link one of 8 MiB takes
#: ten times as long as one of a few KiB and lags behind nobody, and to send it again takes from the link that it waits for.
_PEERS, _ENOUGH, _PEER = 32, 3, 0.5

F = TypeVar("F")


@dataclass(slots=True, eq=False)
class ReadRequest(Generic[F]):
    """One request: where it stands, and its bytes once they are there."""

    range: ByteRange
    #: Which of the loads it belongs to.
    load: int
    began: float = 0.0
    #: How often it is in flight.
    flying: int = 0
    twice: bool = False
    #: Where its bytes are; None until they have arrived.
    frame: F | None = None


class RequestsInFlight(Generic[F]):
    """The requests of some loads, in their order."""

    def __init__(self, loads: Sequence[ReadBatch]) -> None:
        self.pieces = [
            [ReadRequest[F](each, index) for each in load.ranges] for index, load in enumerate(loads)
        ]
        self._waiting = deque(piece for pieces in self.pieces for piece in pieces)
        self._missing = [len(pieces) for pieces in self.pieces]
        self._flying: dict[ReadRequest[F], None] = {}
        #: Of each that arrived its bytes, and the seconds that they took.
        self._took: deque[tuple[int, float]] = deque(maxlen=_PEERS)
        self._held = 0
        self._surplus = 0

    @property
    def in_use(self) -> int:
        """Frames that somebody may write to or read from: never more than `FRAMES`."""
        return self._held + self._surplus

    def begin(self, now: float) -> ReadRequest[F] | None:
        """The next request, which the caller sends; None where there is none, or no frame for it."""
        if not self._waiting or self._held == ROOM:
            return None
        piece = self._waiting.popleft()
        self._held += 1
        piece.began, piece.flying = now, 1
        self._flying[piece] = None
        return piece

    def laggard(self, now: float) -> ReadRequest[F] | None:
        """A request that the caller sends a second time: the oldest, where it lags. Each once."""
        if self._surplus == SPARE:
            return None
        for piece in self._flying:  # in the order in which they began
            if piece.twice or now - piece.began < self._usual(piece):
                continue
            piece.twice = True
            piece.flying += 1
            self._surplus += 1
            return piece
        return None

    def _usual(self, piece: ReadRequest[F]) -> float:
        """Seconds after which it lags; infinity while nobody can say."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * _bytes(piece)]
        return max(LEAST, LAG * median(peers)) if len(peers) >= _ENOUGH else math.inf

    def arrived(self, piece: ReadRequest[F], frame: F, now: float) -> bool:
        """The bytes are in `frame`. False: they were there before, and the frame is the caller's again."""
        piece.flying -= 1
        if piece.frame is not None:
            self._surplus -= 1
            return False
        piece.frame = frame
        self._took.append((_bytes(piece), now - piece.began))
        del self._flying[piece]
        self._missing[piece.load] -= 1
        return True

    def counts(self, piece: ReadRequest[F]) -> bool:
        """A request failed, and its frame is the caller's: whether that is all there was of it. False: another brings
        the bytes, or has brought them. True: it still stands as in flight, for the caller to end it or all."""
        if piece.frame is None and piece.flying == 1:
            return True
        piece.flying -= 1
        self._surplus -= 1
        return False

    def complete(self, piece: ReadRequest[F]) -> bool:
        """Whether all of its load has arrived."""
        return not self._missing[piece.load]

    def done(self, load: int) -> list[F]:
        """A load's frames, which are the caller's again."""
        self._held -= len(self.pieces[load])
        return [piece.frame for piece in self.pieces[load] if piece.frame is not None]


def _bytes(piece: ReadRequest[F]) -> int:
    return piece.range.end - piece.range.start
