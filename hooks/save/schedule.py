"""The schedule of background checkpoints, and the best interval between them.

`CheckpointSchedule` computes when the next checkpoint is due. `best_interval` computes the interval from what a checkpoint costs
training (`lost_training`) and from how often training is lost (`mean_between`).

One more checkpoint costs its share of step time. One fewer costs half an interval of repeated training, at each end of an attempt
without a save of its own. Young (A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974)
put the minimum of the sum at sqrt(2 C M). Daly (A higher order estimate of the optimum checkpoint interval for restart
dumps, FGCS 22(3), 2006) covers a cost C that is no longer small beside the mean time M between such ends.

The upload's length is not part of C, because training goes on beside the upload. It limits the interval through the uploads'
share of the time instead.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections import deque
from collections.abc import Collection, Mapping

from ...providers.dates import parse_duration
from ...providers.errors import UsageError

#: Shortest interval, in seconds: a shorter one saves less training than a listing and a commit are worth.
SHORTEST = 60.0
#: Longest interval, in seconds: a machine that goes without a notice costs at most an hour's work (law 1).
LONGEST = 3600.0
#: Largest share of step time that checkpoints may cost (DESIGN section 10; CheckFreq reports 3.5 %).
_STEP_SHARE = 0.01
#: Largest share of the time that uploads may take: a tenth. If that makes the interval longer than LONGEST: a third.
_UPLOAD_SHARE, _UPLOAD_SHARE_MOST = 0.1, 1 / 3

#: Seconds between ends that lose training, before a run has seen any of its own: nine zones of AWS held one V100 for 3.4 h at a
#: time, in 45 days of 2023 (github.com/skypilot-org/spot-traces, of "Can't Be Late", NSDI 2024).
PRIOR = 3 * 3600.0
#: Ends that the prior is worth: after as many of the run's own, the prior counts half.
_PRIOR_WEIGHT = 1.0
#: Number of newest attempts that count: last month's market tells little of today's.
_RECENT = 20
#: Seconds: a start sooner after another is a crash or a restore in place. No cloud has a new machine ready so soon.
_NO_NEW_MACHINE = 60.0
#: Longest life of an attempt that counts, in seconds: after a day without a start nobody knows what ran.
_LIVED_MOST = 24 * 3600.0


def best_interval(upload: float, cost: float | None = None, mean: float = PRIOR) -> float:
    """Return the seconds from the end of one background checkpoint to the start of the next.

    Args:
        upload: seconds from the first byte of a checkpoint to its commit.
        cost: seconds of training that a checkpoint costs (`lost_training`); None if it was never measured.
        mean: seconds between ends that lose training (`mean_between`).
    """
    wanted = max(SHORTEST, upload / _UPLOAD_SHARE)
    if cost is not None:
        wanted = max(wanted, daly(cost, mean), cost / _STEP_SHARE)
    return min(wanted, max(LONGEST, upload / _UPLOAD_SHARE_MOST))


def daly(cost: float, mean: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least training."""
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return math.sqrt(2 * cost * mean) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def lost_training(blocked: float, upload: float, beside: float = 0.0, alone: float = 0.0) -> float:
    """Return the seconds of training that a background checkpoint costs.

    Args:
        blocked: seconds for which the training thread stood still while the state was copied.
        upload: seconds of the upload beside training.
        beside: seconds of a step during an upload; 0 if unknown.
        alone: seconds of a step without an upload; 0 if unknown.
    """
    slower = 1 - alone / beside if beside > alone > 0 else 0.0
    return blocked + upload * slower


def mean_between(starts: Mapping[int, float], now: float, saved: Collection[int] = ()) -> float:
    """Return the seconds between ends that lose training, estimated from the starts of a run's attempts.

    A preemption, an error or a stall that was committed loses nothing, so a background checkpoint is of no use to it. The model is
    losses at a constant rate with a Gamma prior. The posterior mean of the rate is (losses seen + 1) / (seconds lived + `PRIOR`),
    and the result is its inverse. The running attempt has lived, and lost nothing yet. An end of which nothing is known counts as
    a loss, which errs on the side of more checkpoints.

    Args:
        starts: wall seconds (`AttemptRecord.created`) by attempt, including this attempt's.
        now: wall seconds.
        saved: the attempts whose ends were committed.
    """
    recent = sorted((began, attempt) for attempt, began in starts.items())[-_RECENT:]
    lives = [(attempt, later - began) for (began, attempt), (later, _) in itertools.pairwise(recent)]
    lost = sum(life >= _NO_NEW_MACHINE and attempt not in saved for attempt, life in lives)
    lived = sum(min(life, _LIVED_MOST) for _, life in lives)
    if recent:
        lived += max(0.0, now - recent[-1][0])
    return (PRIOR * _PRIOR_WEIGHT + lived) / (_PRIOR_WEIGHT + lost)


#: Seconds until the first checkpoint with "auto": its cost is unknown. After it `best_interval` decides.
AUTO_EVERY = SHORTEST
#: Checkpoints whose costs are remembered. The median counts: the first also pays for the memory of its copy.
_COSTS = 5


class CheckpointSchedule:
    """The schedule of background checkpoints: from when each save ended and what it cost, it computes when the next is due.

    It is pure: it reads no clock. The training thread calls `restored` and `begun`, and reads `due`. The saving thread calls
    `loses_every` and `saved`. The listener calls `ask`,
    and any thread `damaged`.

    Args:
        every: "auto", "off", or seconds.
        now: monotonic seconds.

    Raises:
        UsageError: `every` is none of these.
    """

    def __init__(self, every: str, now: float) -> None:
        self._auto = every == "auto"
        self.interval = AUTO_EVERY if self._auto else _seconds(every)
        #: Monotonic seconds when the next checkpoint is due, read at every boundary; infinity if they are switched off.
        self.due = now + self.interval
        self._asked = False
        self._mean = PRIOR
        self._costs: deque[float] = deque(maxlen=_COSTS)
        #: Monotonic seconds of the last request for damage.
        self._damaged_at = -math.inf
        #: Guards `due` and `_asked`: a save that ends at that moment must not cancel a request.
        self._lock = threading.Lock()

    def ask(self, *, going: bool) -> bool:
        """Request a checkpoint now.

        Args:
            going: the machine goes; False for a mere warning.

        Returns:
            Whether the request counts. If background checkpoints are switched off, only a machine that is `going` overrides
            that.
        """
        if self.interval == math.inf and not going:
            return False
        with self._lock:
            self._asked, self.due = True, -math.inf
        return True

    def damaged(self, now: float) -> bool:
        """Request a checkpoint now, because one that training counted on is damaged. Return whether the request counts.

        Only one such request counts in an interval: a store that loses all that it accepts would get one upload after the other.
        """
        if now - self._damaged_at < self.interval:
            return False
        self._damaged_at = now
        return self.ask(going=False)

    def restored(self, now: float) -> None:
        """Count the interval from `now`: training begins, or begins again. An earlier request stays."""
        with self._lock:
            if not self._asked:
                self.due = now + self.interval

    def loses_every(self, seconds: float) -> None:
        """Set the seconds between ends that lose training (`mean_between`). They count from the next save on."""
        self._mean = seconds

    def saved(self, now: float, seconds: float, cost: float | None = None) -> None:
        """Note that a checkpoint of any kind was committed at `now` and took `seconds`.

        Args:
            cost: seconds of training that it cost (`lost_training`). None: the cost was not measured, or the checkpoint is not
                a background one, whose cost is another.
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
        """Note that a checkpoint was due: the next is an interval away, even if this one fails.

        Args:
            taken: whether the checkpoint begins. If not, another one is under way. That one is older than an open request, so
                the request stays.
        """
        with self._lock:
            self._asked = self._asked and not taken
            if not self._asked:
                self.due = now + self.interval


def _seconds(every: str) -> float:
    if every == "off":
        return math.inf
    seconds = parse_duration(every)
    if seconds is None or not seconds > 0:
        raise UsageError(
            f"SPOTGUARD_EVERY={every!r} is not an interval: use seconds above 0 (60 or 5m), 'auto', or 'off'"
        )
    return seconds
