"""How far apart background checkpoints lie best: from what one costs training, and how often training is cut off.

One more checkpoint costs its share of step time; one less costs, at each preemption without a save of its own, half an
interval that is trained again. Young (A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974)
put the least of both at sqrt(2 C M); Daly (A higher order estimate of the optimum checkpoint interval for restart
dumps, FGCS 22(3), 2006) where the cost C is no longer small beside the mean time M between preemptions.

The upload's length is not part of C: training goes on beside it. It bounds the interval by the link's share instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

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
