"""What the link to the store does, learned from the puts that have finished. Nothing known is None, and no guess.

All sums are in seconds of the link: a put that shared it with three others for 4 s had it to itself for 1 s. So puts
side by side and one after another add up to the same rate, and a rate is the bytes by those seconds.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

#: Saves that are remembered, and what each is worth beside the one after it.
_SAVES = 16
_FADES = 0.75
#: Seconds of the link after which an earlier save counts no more for being larger.
_ENOUGH = 5.0
#: All earlier saves together count as this many seconds of the link when a save begins.
_MEMORY = 1.0
#: Seconds of the link in which what is known during a save fades to a third: credits for bursts run out in its middle.
_WITHIN = 5.0
#: No link is said to be steadier than this, as a share of the rate.
_STEADIEST = 0.05
#: A rate that is only remembered may be twice that, for training ran beside it: that decides what is tried when
#: nothing would fit, and promises nothing.
_UNTRIED = 2.0
#: Commits that are remembered.
_COMMITS = 5


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes a second, all that go over the link together."""

    expected: float
    #: What it does on a bad and on a good day: one standard deviation of the seconds that a byte takes.
    low: float
    high: float

    @classmethod
    def exactly(cls, rate: float) -> Rate:
        """One that is known."""
        return cls(rate, rate, rate)


class Link:
    """Told of each save and of its puts, says how fast the next bytes will go.

    Call `begin` when a save begins (of any kind), `put` after each put that succeeded, `committed` after each commit.
    Not safe from several threads at once: who has them holds a lock.
    """

    def __init__(self) -> None:
        self._now = _Seen()
        #: What is left of all memory in the save that is under way.
        self._memory = 1.0
        #: Each earlier save, the newest last.
        self._past: deque[_Seen] = deque(maxlen=_SAVES)
        self._commits: deque[float] = deque(maxlen=_COMMITS)

    def begin(self) -> None:
        """A save begins: what was seen up to here is memory, and weighs less from now on."""
        if self._now.seconds > 0:
            self._past.append(self._now)
            self._now = _Seen()
        self._memory = 1.0

    def put(self, nbytes: int, begun: float, ended: float, in_flight: float = 1.0) -> None:
        """A put of so many bytes succeeded.

        Args:
            begun: monotonic seconds, of the attempt that succeeded.
            ended: monotonic seconds.
            in_flight: puts that were under way at once, this one counted: the mean of its begin and its end.
        """
        seconds = (ended - begun) / max(1.0, in_flight)
        if nbytes <= 0 or not seconds > 0:
            return  # an empty object, or a clock too coarse for it, tells nothing of the link
        faded = math.exp(-seconds / _WITHIN)
        self._memory *= faded
        self._now = self._now.times(faded) + _Seen(seconds, nbytes, seconds**2 / nbytes)

    def committed(self, seconds: float) -> None:
        """A manifest and its marker were put, and took so long."""
        self._commits.append(seconds)

    @property
    def commit(self) -> float | None:
        """Seconds to count on for a commit: the longest of the last few."""
        return max(self._commits, default=None)

    @property
    def rate(self) -> Rate | None:
        """What to count on for the next bytes. None: no put has finished yet."""
        known = self._now + self._remembered().times(self._memory)
        if not known.seconds > 0:
            return None
        spread = max(_STEADIEST, known.spread)
        better = 1 + spread if self._now.seconds > 0 else max(_UNTRIED, 1 + spread)
        return Rate(known.rate, known.rate / (1 + spread), known.rate * better)

    def _remembered(self) -> _Seen:
        known = _Seen()
        for age, save in enumerate(reversed(self._past)):
            known += save.at_most(_ENOUGH).times(_FADES**age)
        return known.at_most(_MEMORY)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Sums over stretches of the link, each weighted by what it is still worth."""

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
