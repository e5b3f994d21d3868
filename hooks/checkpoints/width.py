"""How many puts at once, and how large: what did best on this link so far.

One connection gives 50 to 95 MB/s on any cloud, so a fast machine needs many; on a slow link many large objects in flight
all end at the very last moment, and a stall of one costs a large part of the window. Neither is known beforehand: each
save is a measurement, and the next one tries a neighbour until nothing is better.
"""

from __future__ import annotations

from ..format.chunks import OBJECT_BYTES

#: Tried widths. Twelve frames of 32 MiB, and all else, stay below law 9's 512 MiB.
_LADDER = (4, 8, 12)
#: A wider one costs memory and threads: it has to be so much faster.
_WORTH = 1.1
#: Smaller objects where a round of puts would take longer than this, in seconds.
_ROUND = 4.0
_SMALL = 16 * 2**20


class Width:
    """Used by the saving thread. `most` is what the store says makes sense (`BlobStore.parallel`)."""

    def __init__(self, most: int) -> None:
        self._ladder = [width for width in _LADDER if width <= most] or [most]
        #: To be used for the next save.
        self.count = self._ladder[len(self._ladder) // 2]
        self.object_bytes = OBJECT_BYTES
        #: Bytes a second, by width.
        self._rates: dict[int, float] = {}

    def learn(self, nbytes: int, seconds: float) -> None:
        """A save of this width put so many bytes in so many seconds."""
        if nbytes < 2 * self.count * self.object_bytes or seconds <= 0:
            return  # too little to fill what was there
        rate = nbytes / seconds
        known = self._rates.get(self.count)
        self._rates[self.count] = rate if known is None else (known + rate) / 2
        best = self._best()
        at = self._ladder.index(best)
        untried = [each for each in self._ladder[max(0, at - 1) : at + 2] if each not in self._rates]
        self.count = untried[-1] if untried else best
        self.object_bytes = _SMALL if best * OBJECT_BYTES / self._rates[best] > _ROUND else OBJECT_BYTES

    def _best(self) -> int:
        best, *others = sorted(self._rates)
        for width in others:
            if self._rates[width] > _WORTH * self._rates[best]:
                best = width
        return best
