"""Which requests of a restore are in flight, in how many frames, and which lags behind: decided by values, under the
caller's lock.

A request begins when a frame is free for it, so memory is bounded by the number of frames and by nothing else. One that
lags far behind its peers is sent a second time into a frame of its own, since the first may write into its frame at any
time. Whichever arrives first counts; the other's frame comes back when the store lets it go.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from .ranges import MOST_PARTS, Load, Range

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
class Piece(Generic[F]):
    """One request: where it stands, and its bytes once they are there."""

    range: Range
    #: Which of the loads it belongs to.
    load: int
    began: float = 0.0
    #: How often it is in flight.
    flying: int = 0
    twice: bool = False
    #: Where its bytes are; None until they have arrived.
    frame: F | None = None


class Flights(Generic[F]):
    """The requests of some loads, in their order."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self.pieces = [[Piece[F](each, index) for each in load.ranges] for index, load in enumerate(loads)]
        self._waiting = deque(piece for pieces in self.pieces for piece in pieces)
        self._missing = [len(pieces) for pieces in self.pieces]
        self._flying: dict[Piece[F], None] = {}
        #: Of each that arrived its bytes, and the seconds that they took.
        self._took: deque[tuple[int, float]] = deque(maxlen=_PEERS)
        self._held = 0
        self._surplus = 0

    @property
    def in_use(self) -> int:
        """Frames that somebody may write to or read from: never more than `FRAMES`."""
        return self._held + self._surplus

    def begin(self, now: float) -> Piece[F] | None:
        """The next request, which the caller sends; None where there is none, or no frame for it."""
        if not self._waiting or self._held == ROOM:
            return None
        piece = self._waiting.popleft()
        self._held += 1
        piece.began, piece.flying = now, 1
        self._flying[piece] = None
        return piece

    def laggard(self, now: float) -> Piece[F] | None:
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

    def _usual(self, piece: Piece[F]) -> float:
        """Seconds after which it lags; infinity while nobody can say."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * _bytes(piece)]
        return max(LEAST, LAG * median(peers)) if len(peers) >= _ENOUGH else math.inf

    def arrived(self, piece: Piece[F], frame: F, now: float) -> bool:
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

    def counts(self, piece: Piece[F]) -> bool:
        """A request failed, and its frame is the caller's: whether that is all there was of it. False: another brings
        the bytes, or has brought them. True: it still stands as in flight, for the caller to end it or all."""
        if piece.frame is None and piece.flying == 1:
            return True
        piece.flying -= 1
        self._surplus -= 1
        return False

    def complete(self, piece: Piece[F]) -> bool:
        """Whether all of its load has arrived."""
        return not self._missing[piece.load]

    def done(self, load: int) -> list[F]:
        """A load's frames, which are the caller's again."""
        self._held -= len(self.pieces[load])
        return [piece.frame for piece in self.pieces[load] if piece.frame is not None]


def _bytes(piece: Piece[F]) -> int:
    return piece.range.end - piece.range.start
