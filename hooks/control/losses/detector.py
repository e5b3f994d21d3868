"""The judgement of one rank's losses: not finite, or far above the usual.

Pure and deterministic. A loss that is not finite makes checkpoints suspect: the weights that it was computed from, or those of the
step that it belongs to, may not be finite either. A finite loss was computed from the weights of the step before, so they are.

A loss is far above if its robust z-score is beyond `SPIKE`: its distance from the median of the usual losses, divided by their
spread (the median absolute deviation, scaled to a standard deviation). A mean and a variance would be spoilt by the very values
that they are to find. One such loss is ordinary: a hard batch. `LASTING` in a row are reported, and make no checkpoint suspect: a
new term of the loss, other data and a restart of the schedule look the same. If they last, they become the usual ones.

The constants were chosen by measurement: `python -m benchmarks losses` has the figures.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

#: The usual losses: so many of the newest.
WINDOW = 200
#: Fewest usual losses that a judgement needs; and the losses after which a new level is the usual one.
LEAST = 50
#: The robust z-score from which on a loss is a spike.
SPIKE = 20.0
#: Steps in a row with spikes that are reported.
LASTING = 10
#: Steps in a row with finite losses that end a suspicion, and with usual ones that end a report of spikes.
QUIET = 10
#: Losses between two computations of the limit: it takes 20 µs.
_EVERY = 50
#: The median absolute deviation of a normal distribution, as a share of its standard deviation, is one by this.
_SCALE = 1.4826
#: The least spread, as a share of the median. A spike is so at least twice the median: an epoch may be a third harder.
_LEAST_SPREAD = 0.05


class LossChange(Enum):
    """A change of the judgement, by a loss."""

    #: Checkpoints are suspect from now on, and are not any more.
    SUSPECT = "suspect"
    TRUSTED = "trusted"
    #: Losses are far above the usual ones; are as before; have become the usual ones.
    HIGH = "high"
    USUAL = "usual"
    LEARNED = "learned"


@dataclass(slots=True)
class Suspicion:
    """The steps whose checkpoints are suspect, and why."""

    first: int
    why: str
    #: The first step whose checkpoint is trusted again.
    until: float = math.inf

    def covers(self, step: int) -> bool:
        """Return whether the checkpoint of this step is suspect."""
        return self.first <= step < self.until


@dataclass(slots=True)
class HighLosses:
    """Losses far above the usual ones, from the step on at which they were reported."""

    why: str
    seen: list[float] = field(default_factory=list)


class LossDetector:
    """The detector of one rank. One thread at a time gives it losses; any thread may read it.

    Attributes:
        active: the suspicion that has not ended; None if losses are finite.
        high: the report of spikes that has not ended; None if there is none.
        bad_steps: the steps whose losses were not finite, or were spikes that are reported.
    """

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._limit = math.inf
        self._until_limit = LEAST
        #: The steps in a row with spikes; the step and the loss of the first of them.
        self._spikes = 0
        self._first = (0, 0.0)
        #: The steps in a row with good losses, during a suspicion or a report.
        self._good = 0
        #: The newest step that was counted at all, and as bad: a step may have several losses.
        self._counted = self._bad = -1
        #: The newest step with a finite loss.
        self._finite = 0
        self.active: Suspicion | None = None
        self.high: HighLosses | None = None
        #: Replaced as a whole, because other threads read it.
        self._known: tuple[Suspicion, ...] = ()
        self.bad_steps = 0

    def begin(self, step: int, inherited: str = "") -> None:
        """Forget everything: training goes on from another state.

        Args:
            step: the completed steps of that state.
            inherited: why that state is suspect; "" if it is not. The next steps then are, too, and the reason stays if their
                losses are not finite. Without any losses, they are for `QUIET` steps.
        """
        bad_steps = self.bad_steps
        self.__init__()  # type: ignore[misc]
        self.bad_steps, self._finite = bad_steps, step
        if inherited:
            self.active = Suspicion(step, inherited, step + QUIET)
            self._known = (self.active,)

    def see(self, step: int, loss: float) -> LossChange | None:
        """Take the loss of a step, counted from 1. Return what it changes."""
        if not -math.inf < loss < math.inf:
            return self._not_finite(step, loss)
        self._finite = step
        if self.active is not None:
            return self._recover(step, self.active)
        if self.high is not None:
            return self._compare(step, loss, self.high)
        if loss <= self._limit:
            self._spikes = 0  # the way of nearly all losses
        else:
            if not self._spikes:
                self._first = (step, loss)
            self._spikes += self._counts(step)
            if self._spikes >= LASTING:
                was, (first, high) = median(self._usual), self._first
                self.high = HighLosses(f"the loss is {high:.4g} since step {first}, and was {was:.4g}")
                self.bad_steps, self._bad = self.bad_steps + self._spikes, step
                self._spikes = self._good = 0
                return LossChange.HIGH
        self._learn(loss)
        return None

    def why(self, step: int) -> str:
        """Return why the checkpoint of a step is suspect; "" if it is not. Any thread may call this."""
        return next((each.why for each in self._known if each.covers(step)), "")

    def _not_finite(self, step: int, loss: float) -> LossChange | None:
        self._count_bad(step)
        self._good = self._spikes = 0
        self.high = None
        if self.active is not None:
            self.active.until = math.inf
            return None
        # The loss may be given every few steps only: any step since the last finite one may be the first bad one.
        self.active = Suspicion(min(step - 1, self._finite + 1), f"the loss is {loss} since step {step}")
        self._known = (*self._known[-7:], self.active)
        return LossChange.SUSPECT

    def _recover(self, step: int, active: Suspicion) -> LossChange | None:
        self._good += self._counts(step)
        if self._good < QUIET and step < active.until:
            return None
        active.until = min(active.until, step)
        self.active = None
        return LossChange.TRUSTED

    def _compare(self, step: int, loss: float, high: HighLosses) -> LossChange | None:
        """Compare a loss during a report of spikes."""
        if loss > self._limit:
            self._good = 0
            self._count_bad(step)
        else:
            self._good += self._counts(step)
        high.seen.append(loss)
        if self._good >= QUIET:
            self.high = None
            return LossChange.USUAL
        if len(high.seen) < LEAST:
            return None
        self.high = None
        self._usual.clear()
        self._usual.extend(high.seen)
        self._until_limit, self._limit = _EVERY, limit_of(self._usual)
        return LossChange.LEARNED

    def _counts(self, step: int) -> bool:
        """Return whether this is the first loss of its step that counts, as a good or as a bad one."""
        new, self._counted = step != self._counted, step
        return new

    def _count_bad(self, step: int) -> None:
        """Count a step as bad, once: also one whose first loss, of several, was good."""
        self.bad_steps += step != self._bad
        self._counted = self._bad = step

    def _learn(self, loss: float) -> None:
        self._usual.append(loss)
        self._until_limit -= 1
        if not self._until_limit:
            self._until_limit = _EVERY
            self._limit = limit_of(self._usual)


def limit_of(usual: deque[float]) -> float:
    """Return the loss beyond which the next ones are spikes."""
    middle = median(usual)
    spread = _SCALE * median([abs(each - middle) for each in usual])
    return middle + SPIKE * max(spread, _LEAST_SPREAD * abs(middle), 1e-12)
