"""What the link to the store does, learned from the bytes of each save. Nothing known is None, and no guess.

A save is looked at in stretches of half a second: so long, so many bytes. What is to come takes the seconds that bytes
have taken, so a rate is always bytes by seconds over many of them, and never a mean of rates.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from dataclasses import dataclass

from .bin_packing import OBJECT_BYTES

#: Seconds of a stretch: long beside a piece of an object and a socket's buffer, short beside a notice.
_STRETCH = 0.5
#: Saves that are remembered, and what each is worth beside the one after it.
_SAVES = 16
_FADES = 0.75
#: All earlier saves together count as this many seconds when a save begins: its own first stretch weighs as much.
_MEMORY = 0.5
#: Seconds in which what is known during a save fades to a third: credits for bursts run out in its middle. So no save
#: is remembered by more than its last few seconds, however long it was.
_WITHIN = 5.0
#: No link is said to be steadier than this, as a share of the rate.
_STEADIEST = 0.05
#: A link that is only remembered may do twice the best of what it did, for training ran beside it, and a store that
#: stood still is back: that decides what is tried when nothing would fit, and promises nothing.
_UNTRIED = 2.0
#: Commits that are remembered.
_COMMITS = 5


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Bytes a second, all that go over the link together."""

    expected: float
    #: What it does on a bad and on a good day: one standard deviation of the seconds that a byte takes.
    low: float
    high: float

    @classmethod
    def exactly(cls, rate: float) -> LinkRate:
        """One that is known."""
        return cls(rate, rate, rate)


class StoreLink:
    """Told of the bytes of each save, says how fast the next will go. All times are monotonic seconds.

    Call `begin` when the first put of a save begins (of any kind), `sent` as its bytes leave, `end` when the last is in
    the store or the save is given up, `committed` after each commit. From any thread: the bytes leave on many, and the
    plan is made on yet another.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: The stretch that is open: since when, and the bytes of the save at its begin and by now.
        self._since: float | None = None
        self._before = self._gone = 0
        #: The save that is under way, or ended last.
        self._now = _Seen()
        #: What is left of all memory in it.
        self._memory = 1.0
        #: Each earlier save, the newest last.
        self._past: deque[_Seen] = deque(maxlen=_SAVES)
        self._commits: deque[float] = deque(maxlen=_COMMITS)

    def begin(self, now: float) -> None:
        """The bytes of a save begin. What was seen up to here is memory, and weighs less from now on."""
        with self._lock:
            if self._now.seconds > 0:
                self._past.append(self._now)
                self._now = _Seen()
            self._memory = 1.0
            self._since, self._before, self._gone = now, 0, 0

    def sent(self, nbytes: int, now: float) -> None:
        """So many bytes of the save have left by now, all together. Fewer than before (an object is sent again) is
        time without bytes."""
        with self._lock:
            self._gone = max(self._gone, nbytes)
            if self._since is not None and now - self._since >= _STRETCH:
                self._close(now)

    def paused(self, seconds: float) -> None:
        """There was nothing to be sent for so long, up to now: no time of the link's."""
        with self._lock:
            if self._since is not None:
                self._since += seconds

    def end(self, now: float, *, whole: bool = True) -> None:
        """No more bytes of this save: what comes now is not the link's time. Its last stretch counts, however short, where
        it came to its end: of one that was called off a moment after its begin it would say nothing of the link."""
        with self._lock:
            if whole:
                self._close(now)
            self._since = None

    def committed(self, seconds: float) -> None:
        """A manifest and its marker were put, and took so long."""
        with self._lock:
            self._commits.append(seconds)

    @property
    def commit(self) -> float | None:
        """Seconds to count on for a commit: what most of the last few took, so that one bad one decides nothing."""
        with self._lock:
            return statistics.median_high(self._commits) if self._commits else None

    @property
    def commit_at_best(self) -> float | None:
        """The shortest of the last few."""
        with self._lock:
            return min(self._commits, default=None)

    def rate(self, now: float) -> LinkRate | None:
        """What to count on for the next bytes. None: nothing has been seen yet.

        On a link that stands still it falls as time goes by, though nothing is sent.
        """
        with self._lock:
            known = self._now + self._remembered().times(self._memory)
            if not known.seconds > 0:
                return None
            spread = max(_STEADIEST, known.spread)
            expected = known.rate
            if self._since is not None and (waited := now - self._since) >= _STRETCH:
                expected = (known.nbytes + self._gone - self._before) / (known.seconds + waited)
            high = expected * (1 + spread)
            if self._since is None or not self._now.seconds > 0:
                high = max(high, _UNTRIED * self._best())
            return LinkRate(expected, expected / (1 + spread), high)

    def _close(self, now: float) -> None:
        """The open stretch ends, if it brought anything: one without bytes goes on."""
        nbytes = self._gone - self._before
        if self._since is None or nbytes == 0 or not (seconds := now - self._since) > 0:
            return
        faded = math.exp(-seconds / _WITHIN)
        self._memory *= faded
        self._now = self._now.times(faded) + _Seen(seconds, nbytes, seconds**2 / nbytes)
        self._since, self._before = now, self._gone

    def _best(self) -> float:
        """Of all saves that are remembered."""
        return max(save.rate for save in [*self._past, self._now] if save.seconds > 0)

    def _remembered(self) -> _Seen:
        known = _Seen()
        for age, save in enumerate(reversed(self._past)):
            known += save.times(_FADES**age)
        return known.at_most(_MEMORY)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Sums over stretches, each weighted by what it is still worth."""

    seconds: float = 0.0
    nbytes: float = 0.0
    #: Of each stretch its seconds squared by its bytes: what the spread of the seconds a byte takes is made from.
    squares: float = 0.0

    def __add__(self, other: _Seen) -> _Seen:
        return _Seen(self.seconds + other.seconds, self.nbytes + other.nbytes, self.squares + other.squares)

    def times(self, worth: float) -> _Seen:
        return _Seen(self.seconds * worth, self.nbytes * worth, self.squares * worth)

    def at_most(self, seconds: float) -> _Seen:
        return self.times(seconds / self.seconds) if self.seconds > seconds else self

    @property
    def rate(self) -> float:
        return self.nbytes / self.seconds

    @property
    def spread(self) -> float:
        """Standard deviation of the seconds that a byte takes, byte for byte, as a share of their mean."""
        return math.sqrt(max(0.0, self.squares * self.nbytes / self.seconds**2 - 1))


# How many puts at once, and how large: what did best on this link so far.
#
# One connection gives 50 to 95 MB/s on any cloud, so a fast machine needs many; on a slow link many large objects in flight
# all end at the very last moment, and a stall of one costs a large part of the window. Neither is known beforehand: each
# save is a measurement, and the next one tries a neighbour until nothing is better.

#: Tried widths. Twelve frames of 32 MiB, and all else, stay below law 9's 512 MiB.
_LADDER = (4, 8, 12)
#: A wider one costs memory and threads: it has to be so much faster.
_WORTH = 1.1
#: Smaller objects where a round of puts would take longer than this, in seconds.
_ROUND = 4.0
_SMALL = 16 * 2**20


class UploadWidth:
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
