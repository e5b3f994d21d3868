"""What a budget is made from, and what it says: values alone. `budget` decides.

Bytes are those that go over the link, times are monotonic seconds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from .rate import Rate


class Choice(enum.Enum):
    """What is saved. Each is worth more than those below it."""

    #: Parameters, extras and moments, as they are.
    FULL = "full"
    #: The background checkpoint that is under way is let finish, and committed.
    PROMOTE = "promote"
    #: Parameters and extras as they are, moments rounded.
    FULL_LOSSY = "full-lossy"
    #: Parameters and extras are committed, then the moments follow, and a full manifest if all of them arrive.
    LOWER = "lower"
    #: Nothing is written. The last committed checkpoint stays.
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the state, by tier. What refers to an earlier checkpoint of the attempt is not written again."""

    #: Tier A: parameters, buffers, extras.
    parameters: int
    #: Tier B: the optimizer's moments, and whatever else the lower level lacks.
    moments: int
    #: Tier B with its moments rounded; None where that is not allowed.
    rounded: int | None = None
    #: Of each tier, what is unchanged and only referred to.
    unchanged_parameters: int = 0
    unchanged_moments: int = 0

    @property
    def a(self) -> int:
        """To be written of tier A."""
        return max(0, self.parameters - self.unchanged_parameters)

    @property
    def b(self) -> int:
        """To be written of tier B."""
        return max(0, self.moments - self.unchanged_moments)

    @property
    def b_rounded(self) -> int | None:
        """The same, rounded. None also where that would save nothing."""
        if self.rounded is None:
            return None
        rounded = max(0, self.rounded - self.unchanged_moments)
        return rounded if rounded < self.b else None


@dataclass(frozen=True, slots=True)
class Earlier:
    """A checkpoint that is committed."""

    step: int
    #: Seconds of training that a restore of it repeats: what was done since that step.
    age: float


@dataclass(frozen=True, slots=True)
class Underway:
    """A background checkpoint whose objects are being put."""

    step: int
    #: Seconds of training that a restore of it repeats.
    age: float
    #: Bytes that are not in the store yet.
    left: int


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan is made from."""

    now: float
    #: When the commit must be done, the reserve cut off already (`Alarm.save_by`). Infinity where there is none.
    deadline: float
    #: The completed step that would be saved now.
    step: int
    sizes: Sizes
    #: None: nothing is known of the link.
    rate: Rate | None
    #: Seconds of a manifest and its marker.
    commit: float = 0.0
    background: Underway | None = None
    last: Earlier | None = None
    #: The same on a good day: what would not fit even so is not begun.
    commit_at_best: float = math.inf
    #: Whether a restore would take the lower level of this step (`worth.counts`).
    lower_counts: bool = False

    @property
    def least_commit(self) -> float:
        return min(self.commit, self.commit_at_best)


@dataclass(frozen=True, slots=True)
class Landed:
    """How far the save is that a plan began."""

    #: Bytes that have left for the store, of each tier as it is written.
    a: int = 0
    b: int = 0
    #: Whether anything of tier B was begun: from there on it is not rounded any more.
    b_begun: bool = False
    #: Whether the lower level is committed already.
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and why."""

    choice: Choice
    #: For a person: the numbers that decided. It belongs into the outcome.
    reason: str
    #: When this choice is committed, at the expected rate. None: the rate is not known, or nothing is saved.
    end: float | None = None
    #: Seconds from there to the deadline. Below 0 it is a try: nothing else would fit, and trying loses nothing.
    slack: float | None = None
    #: Commit the lower level as soon as tier A is in the store. Always for LOWER, and for a full save that fits, but
    #: not on a bad day.
    lower_first: bool = False
    #: Who has tier A in the store by then and not all of tier B commits the lower level now, beside the puts that go
    #: on, whether or not `replan` was asked: on a link that stands still nothing lands. Infinity where that is no way
    #: out, or was done.
    fall_back_at: float = math.inf
    #: All fits, and the lower level is committed on the way all the same: clouds break their promise. The moments go on
    #: beside it.
    early: bool = False
