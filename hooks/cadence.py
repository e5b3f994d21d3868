"""When the next background checkpoint is due."""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque

from ..providers.errors import UsageError
from .interval import PRIOR, SHORTEST, best_interval

#: "auto": seconds until the first, whose cost nobody knows; after it `best_interval` says.
AUTO_EVERY = SHORTEST
#: Checkpoints whose cost is remembered. The middle one counts: the first also pays for the memory of its copy.
_COSTS = 5


class Cadence:
    """A pure clockwork: told when a save ended and what it cost, says when the next is due.

    The training thread calls `restored`, `begun` and reads `due`, the saving thread calls `preempted_every` and `saved`,
    the listener `ask`.

    Args:
        every: "auto", "off", or seconds.

    Raises:
        UsageError: none of these.
    """

    def __init__(self, every: str, now: float) -> None:
        self._auto = every == "auto"
        self.interval = AUTO_EVERY if self._auto else _seconds(every)
        #: Monotonic seconds, read at every boundary; infinity when switched off.
        self.due = now + self.interval
        self._asked = False
        self._mean = PRIOR
        self._costs: deque[float] = deque(maxlen=_COSTS)
        #: Guards both: a save that ends just then must not take back what is asked for.
        self._lock = threading.Lock()

    def ask(self, *, going: bool) -> bool:
        """One is wanted now. False where background checkpoints are switched off and that word stands: it gives
        way to a machine that is `going`, and not to a mere warning."""
        if self.interval == math.inf and not going:
            return False
        with self._lock:
            self._asked, self.due = True, -math.inf
        return True

    def restored(self, now: float) -> None:
        """Training begins, or begins again: counted from here. What was asked for before is still wanted."""
        with self._lock:
            if not self._asked:
                self.due = now + self.interval

    def preempted_every(self, seconds: float) -> None:
        """What is known of the time between preemptions (`interval.mean_between`). Counts from the next save on."""
        self._mean = seconds

    def saved(self, now: float, seconds: float, cost: float | None = None) -> None:
        """A checkpoint (of any kind) was committed at `now` and took `seconds`.

        Args:
            cost: seconds of training that it took (`interval.lost_training`). None: not measured, or not a background
                one, which costs otherwise.
        """
        if cost is not None:
            self._costs.append(cost)
        if self._auto:
            known = statistics.median(self._costs) if self._costs else None
            self.interval = best_interval(seconds, known, self._mean)
        with self._lock:
            if not self._asked:
                self.due = now + self.interval

    def begun(self, now: float, *, taken: bool = True) -> None:
        """It was time for one: the next is an interval away, also if this one fails. Not `taken`, for another is under
        way: what was asked for is still wanted, since that one is older."""
        with self._lock:
            self._asked = self._asked and not taken
            if not self._asked:
                self.due = now + self.interval


def _seconds(every: str) -> float:
    if every == "off":
        return math.inf
    try:
        seconds = float(every)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UsageError(f"every={every!r} is not an interval: use seconds above 0 (60), 'auto', or 'off'")
    return seconds
