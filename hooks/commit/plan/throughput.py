"""The measured throughput of the link to the store, and the number and size of puts that did best on it.

`StoreLink` learns a rate from the bytes of each save. Without any measurement the rate is None, not a guess. It measures a save
in stretches of half a second. Future bytes will take the seconds that past bytes took. So a rate is always the bytes of many
stretches divided by their seconds, and never a mean of rates.

`UploadWidth` learns how many puts to run at once, and how large they are. One connection gives 50 to 95 MB/s on any cloud, so a
fast machine needs many. On a slow link many large objects in flight all end at the very last moment. Then a stall of one
costs a large part of the window. Neither number is known beforehand. Each save is a measurement, and the next save tries a
neighbouring width until none is better.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from dataclasses import dataclass

from .bin_packing import OBJECT_BYTES

#: Seconds of a stretch: long compared with a piece of an object and a socket's buffer, short compared with a notice.
_STRETCH = 0.5
#: Saves that are remembered.
_SAVES = 16
#: The weight of a save relative to the save after it.
_FADES = 0.75
#: Seconds that all earlier saves together count when a save begins: as much as its own first stretch.
_MEMORY = 0.5
#: Seconds in which a measurement during a save fades to a third, because credits for bursts run out in its middle. So only the
#: last few seconds of a save are remembered, however long it was.
_WITHIN = 5.0
#: Least spread of a link, as a share of the rate.
_STEADIEST = 0.05
#: Factor on the best remembered rate, for the `high` rate of a link that this save has not measured. Training ran beside the
#: earlier saves, and a store that stood still may be back. The factor decides what a save tries when nothing would fit.
_UNTRIED = 2.0
#: Commits that are remembered.
_COMMITS = 5


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A rate of the link, in bytes a second over all connections together."""

    expected: float
    #: The rates on a bad and on a good day: one standard deviation of the seconds that a byte takes.
    low: float
    high: float

    @classmethod
    def exactly(cls, rate: float) -> LinkRate:
        """Return a rate without spread."""
        return cls(rate, rate, rate)


class StoreLink:
    """The link to the store: it learns from the bytes of each save how fast the next bytes will go.

    Call `begin` when the first put of a save of any kind begins, and `sent` as its bytes leave. Call `end` when the last object
    is in the store or the save is given up, and `committed` after each commit. Any thread may call them: the bytes leave on
    many threads, and yet another makes the plan. All times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: The open stretch: its start, and the bytes of the save at its start and now.
        self._since: float | None = None
        self._before = self._gone = 0
        #: The measurements of the save that is under way, or ended last.
        self._now = _Seen()
        #: The weight that the memory of earlier saves still has.
        self._memory = 1.0
        #: The measurements of each earlier save, the newest last.
        self._past: deque[_Seen] = deque(maxlen=_SAVES)
        self._commits: deque[float] = deque(maxlen=_COMMITS)

    def begin(self, now: float) -> None:
        """Begin the bytes of a save. All measurements before it become memory, and weigh less from now on."""
        with self._lock:
            if self._now.seconds > 0:
                self._past.append(self._now)
                self._now = _Seen()
            self._memory = 1.0
            self._since, self._before, self._gone = now, 0, 0

    def sent(self, nbytes: int, now: float) -> None:
        """Note the bytes of the save that have left so far, all together.

        If they are fewer than before (an object is sent again), this is time without bytes.
        """
        with self._lock:
            self._gone = max(self._gone, nbytes)
            if self._since is not None and now - self._since >= _STRETCH:
                self._close(now)

    def paused(self, seconds: float) -> None:
        """Exclude the `seconds` up to now: there was nothing to send."""
        with self._lock:
            if self._since is not None:
                self._since += seconds

    def end(self, now: float, *, whole: bool = True) -> None:
        """End the bytes of this save: the time from now on does not count.

        Args:
            whole: all objects are in the store. Then the last stretch counts, however short it is. A short stretch of a save
                that was called off at its start would tell nothing of the link.
        """
        with self._lock:
            if whole:
                self._close(now)
            self._since = None

    def committed(self, seconds: float) -> None:
        """Note the seconds that a manifest and its marker took."""
        with self._lock:
            self._commits.append(seconds)

    @property
    def commit(self) -> float | None:
        """Seconds to expect for a commit: the (upper) median of the last few, so that one slow commit decides nothing."""
        with self._lock:
            return statistics.median_high(self._commits) if self._commits else None

    @property
    def commit_at_best(self) -> float | None:
        """Seconds of the shortest of the last few commits."""
        with self._lock:
            return min(self._commits, default=None)

    def rate(self, now: float) -> LinkRate | None:
        """Return the rate to expect for the next bytes; None if nothing was measured yet.

        On a link that stands still the rate falls with time, although nothing is sent.
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
        """Close the open stretch if it has bytes. A stretch without bytes goes on."""
        nbytes = self._gone - self._before
        if self._since is None or nbytes == 0 or not (seconds := now - self._since) > 0:
            return
        faded = math.exp(-seconds / _WITHIN)
        self._memory *= faded
        self._now = self._now.times(faded) + _Seen(seconds, nbytes, seconds**2 / nbytes)
        self._since, self._before = now, self._gone

    def _best(self) -> float:
        """Return the best rate of all remembered saves."""
        return max(save.rate for save in [*self._past, self._now] if save.seconds > 0)

    def _remembered(self) -> _Seen:
        known = _Seen()
        for age, save in enumerate(reversed(self._past)):
            known += save.times(_FADES**age)
        return known.at_most(_MEMORY)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Sums over stretches, each with the weight that it still has."""

    seconds: float = 0.0
    nbytes: float = 0.0
    #: The sum of each stretch's seconds squared divided by its bytes: it gives the spread of the seconds that a byte takes.
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
        """Standard deviation of the seconds that a byte takes, weighted by bytes, as a share of their mean."""
        return math.sqrt(max(0.0, self.squares * self.nbytes / self.seconds**2 - 1))


# --- number and size of puts ---

#: Widths that are tried. Twelve buffers of 32 MiB, and all other memory, stay below law 9's 512 MiB.
_LADDER = (4, 8, 12)
#: Factor by which a wider one must be faster, because it costs memory and threads.
_WORTH = 1.1
#: If a round of puts would take longer than this (seconds), objects are smaller: `_SMALL` bytes.
_ROUND = 4.0
_SMALL = 16 * 2**20


class UploadWidth:
    """The number of puts at once and the size of objects. The saving thread uses it.

    Args:
        most: the largest number that makes sense for the store (`BlobStore.parallel`).
    """

    def __init__(self, most: int) -> None:
        self._ladder = [width for width in _LADDER if width <= most] or [most]
        #: Puts at once, for the next save.
        self.count = self._ladder[len(self._ladder) // 2]
        self.object_bytes = OBJECT_BYTES
        #: Bytes a second, by width.
        self._rates: dict[int, float] = {}

    def learn(self, nbytes: int, seconds: float) -> None:
        """Note that a save of this width put `nbytes` in `seconds`, and choose the width and size for the next save."""
        if nbytes < 2 * self.count * self.object_bytes or seconds <= 0:
            return  # too few bytes to keep all connections busy
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
