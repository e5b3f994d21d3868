"""When the next background checkpoint is due."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections import deque
from collections.abc import Iterable

from ....providers.errors import UsageError

# How far apart background checkpoints lie best: from what one costs training, and how often training is cut off.
#
# One more checkpoint costs its share of step time; one less costs, at each preemption without a save of its own, half an
# interval that is trained again. Young (A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974)
# put the least of both at sqrt(2 C M); Daly (A higher order estimate of the optimum checkpoint interval for restart
# dumps, FGCS 22(3), 2006) where the cost C is no longer small beside the mean time M between preemptions.
#
# The upload's length is not part of C: training goes on beside it. It bounds the interval by the link's share instead.

#: Not more often than this, in seconds: what it would save is not worth a listing and a commit.
SHORTEST = 60.0
#: Nor more seldom: a machine that goes without a word takes no more than an hour's work with it (law 1).
LONGEST = 3600.0
#: Of step time, at most (DESIGN section 10; CheckFreq reports 3.5 %).
_STEP_SHARE = 0.01
#: Of the time, uploads take a tenth at most; where that would be more seldom than LONGEST, a third.
_UPLOAD_SHARE, _UPLOAD_SHARE_MOST = 0.1, 1 / 3

#: Seconds between preemptions before anything is known of a run's own: nine zones of AWS held one V100 for 3.4 h at a
#: time, in 45 days of 2023 (github.com/skypilot-org/spot-traces, of "Can't Be Late", NSDI 2024).
PRIOR = 3 * 3600.0
#: Preemptions that the prior is worth: after as many of the run's own it counts half.
_PRIOR_WEIGHT = 1.0
#: Attempts that are looked at: a market of last month says little about today's.
_RECENT = 20
#: Seconds: a start so soon after another is a crash or a restore in place. No cloud has a new machine ready by then.
_NO_NEW_MACHINE = 60.0
#: Seconds that an attempt is taken to have lived at most: after a day without a start nobody knows what ran.
_LIVED_MOST = 24 * 3600.0


def best_interval(upload: float, cost: float | None = None, mean: float = PRIOR) -> float:
    """Seconds from the end of one background checkpoint to the begin of the next.

    Args:
        upload: seconds from the first byte of one to its commit.
        cost: seconds of training that one takes (`lost_training`). None: nobody has measured it.
        mean: seconds between preemptions (`mean_between`).
    """
    wanted = max(SHORTEST, upload / _UPLOAD_SHARE)
    if cost is not None:
        wanted = max(wanted, daly(cost, mean), cost / _STEP_SHARE)
    return min(wanted, max(LONGEST, upload / _UPLOAD_SHARE_MOST))


def daly(cost: float, mean: float) -> float:
    """The seconds of training between two checkpoints with which the least is lost."""
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return math.sqrt(2 * cost * mean) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def lost_training(blocked: float, upload: float, beside: float = 0.0, alone: float = 0.0) -> float:
    """Seconds of training that a background checkpoint costs.

    Args:
        blocked: seconds for which the training thread stood still, while the state was copied.
        upload: seconds of the upload beside training.
        beside: seconds of a step while something is uploaded.
        alone: seconds of a step otherwise. Either is 0 where it is not known.
    """
    slower = 1 - alone / beside if beside > alone > 0 else 0.0
    return blocked + upload * slower


def mean_between(starts: Iterable[float], now: float) -> float:
    """Seconds between preemptions, from when a run's attempts were started.

    Preemptions of a constant rate with a Gamma prior: the mean of what the rate may be is (preemptions seen + 1) by
    (seconds lived + `PRIOR`), and this is one by that. The attempt that runs has lived, and was not preempted yet. A
    start is taken to follow a preemption, which errs on the side of more checkpoints.

    Args:
        starts: wall seconds (`AttemptRecord.created`), in any order, this attempt's among them.
        now: wall seconds.
    """
    recent = sorted(starts)[-_RECENT:]
    lives = [later - earlier for earlier, later in itertools.pairwise(recent)]
    preempted = sum(life >= _NO_NEW_MACHINE for life in lives)
    lived = sum(min(life, _LIVED_MOST) for life in lives)
    if recent:
        lived += max(0.0, now - recent[-1])
    return (PRIOR * _PRIOR_WEIGHT + lived) / (_PRIOR_WEIGHT + preempted)


#: "auto": seconds until the first, whose cost nobody knows; after it `best_interval` says.
AUTO_EVERY = SHORTEST
#: Checkpoints whose cost is remembered. The middle one counts: the first also pays for the memory of its copy.
_COSTS = 5


class CheckpointSchedule:
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
