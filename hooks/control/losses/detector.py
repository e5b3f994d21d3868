"""The judgement of one rank's losses: not finite, or far above the usual. It decides which checkpoints are suspect.

Pure and deterministic. A loss is far above if its robust z-score is beyond `SPIKE`: its distance from the median of the usual
losses, divided by their spread (the median absolute deviation, scaled to a standard deviation). A mean and a variance would be
spoilt by the very values that they are to find.

One such loss is ordinary: a hard batch. `LASTING` in a row are not. One that is not finite is enough: the step that it belongs
to may have made the weights so.

The constants were chosen by measurement: `python -m benchmarks losses` has the figures.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

#: The usual losses: so many of the newest.
WINDOW = 200
#: Fewest usual losses that a judgement needs.
LEAST = 50
#: The robust z-score from which on a loss is a spike.
SPIKE = 20.0
#: Spikes in a row that make checkpoints suspect.
LASTING = 10
#: Normal losses in a row that end a suspicion.
QUIET = 20
#: Losses between two computations of the limit: it takes 20 µs.
_EVERY = 50
#: The median absolute deviation of a normal distribution, as a share of its standard deviation, is one by this.
_SCALE = 1.4826
#: The least spread, as a share of the median. A spike is so at least twice the median: an epoch may be a third harder.
_LEAST_SPREAD = 0.05


@dataclass(slots=True)
class Suspicion:
    """The steps whose checkpoints are suspect, and why."""

    #: The step of the first bad loss. The state of the step before it may have caused it.
    since: int
    why: str
    #: The first step whose checkpoint is trusted again.
    until: float = math.inf

    def covers(self, step: int) -> bool:
        """Return whether the checkpoint of this step is suspect."""
        return self.since - 1 <= step < self.until


class LossDetector:
    """The detector of one rank.

    Attributes:
        active: the suspicion that has not ended; None if losses are normal.
        suspect_steps: the losses that were seen during suspicions.
    """

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._limit = math.inf
        self._until_limit = LEAST
        #: The spikes in a row, and the step of the first one.
        self._spikes = self._first = 0
        #: The normal losses in a row, during a suspicion.
        self._normal = 0
        self.active: Suspicion | None = None
        self._known: deque[Suspicion] = deque(maxlen=8)
        self.suspect_steps = 0

    def begin(self, step: int, inherited: str = "") -> None:
        """Forget everything: training goes on from another state.

        Args:
            step: the completed steps of that state.
            inherited: why that state is suspect; "" if it is not. The next steps then are, too.
        """
        suspect_steps = self.suspect_steps
        self.__init__()  # type: ignore[misc]
        self.suspect_steps = suspect_steps
        if inherited:
            self._known.append(Suspicion(step + 1, inherited, step + QUIET))

    def see(self, step: int, loss: float) -> bool:
        """Take the loss of a step, counted from 1.

        Returns:
            Whether a suspicion has begun or ended.
        """
        if self.active is None and -math.inf < loss < math.inf and loss <= self._limit:
            self._spikes = 0  # the way of nearly all losses
            self._learn(loss)
            return False
        finite = math.isfinite(loss)
        spike = finite and loss > self._limit
        if spike:
            self._spikes += 1
            if self._spikes == 1:
                self._first = step
        if self.active is not None:
            self.suspect_steps += 1
            self._normal = self._normal + 1 if finite and not spike else 0
            if self._normal < QUIET:
                return False
            self.active.until, self.active = step, None
            return True
        if not finite or self._spikes == LASTING:
            self._suspect(step, loss)
            return True
        self._learn(loss)
        return False

    def why(self, step: int) -> str:
        """Return why the checkpoint of a step is suspect; "" if it is not."""
        return next((each.why for each in self._known if each.covers(step)), "")

    def _suspect(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            usual = median(self._usual)
            why = f"the loss is {loss:.4g} since step {self._first}, and was {usual:.4g}"
            self.suspect_steps += LASTING
            self.active = Suspicion(self._first, why)
        else:
            self.suspect_steps += 1
            self.active = Suspicion(step, f"the loss is {loss} since step {step}")
        self._normal = self._spikes = 0
        self._known.append(self.active)

    def _learn(self, loss: float) -> None:
        """Take a loss as a usual one. During a suspicion none is: a diverged training must not become the usual one."""
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
