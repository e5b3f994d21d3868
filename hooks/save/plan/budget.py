"""What can still be saved: a plan from bytes, a rate and a deadline, and from a plan a lesser one.

What is worth most comes first: the full state; else the background checkpoint under way, if its rest fits; else the
full state with rounded moments, where that is allowed; else parameters and extras, with the moments after them; else
nothing, and the last committed checkpoint stays. Where there is none, trying is all that is left, whatever the link did
so far: of one that stood still an estimate is wrong by any factor.

The order of writing is the same in all of them, and makes a change of plan cheap: **every object of parameters and
extras (tier A) before the first of the moments (tier B), and none that holds both.** A full save is a lower one
that went on.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from .throughput import LinkRate

# What a budget is made from, and what it says: values alone. `budget` decides.
#
# Bytes are those that go over the link, times are monotonic seconds.


class BudgetChoice(enum.Enum):
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
class SaveSizes:
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
class EarlierCheckpoint:
    """A checkpoint that is committed."""

    step: int
    #: Seconds of training that a restore of it repeats: what was done since that step.
    age: float


@dataclass(frozen=True, slots=True)
class UploadInProgress:
    """A background checkpoint whose objects are being put."""

    step: int
    #: Seconds of training that a restore of it repeats.
    age: float
    #: Bytes that are not in the store yet.
    left: int


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """All that a plan is made from."""

    now: float
    #: When the commit must be done, the reserve cut off already (`Alarm.save_by`). Infinity where there is none.
    deadline: float
    #: The completed step that would be saved now.
    step: int
    sizes: SaveSizes
    #: None: nothing is known of the link.
    rate: LinkRate | None
    #: Seconds of a manifest and its marker.
    commit: float = 0.0
    background: UploadInProgress | None = None
    last: EarlierCheckpoint | None = None
    #: The same on a good day: what would not fit even so is not begun.
    commit_at_best: float = math.inf
    #: Whether a restore would take the lower level of this step (`ranking.counts`).
    lower_counts: bool = False

    @property
    def least_commit(self) -> float:
        return min(self.commit, self.commit_at_best)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """How far the save is that a plan began."""

    #: Bytes that have left for the store, of each tier as it is written.
    a: int = 0
    b: int = 0
    #: Whether anything of tier B was begun: from there on it is not rounded any more.
    b_begun: bool = False
    #: Whether the lower level is committed already.
    committed: bool = False


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What is to be done, and why."""

    choice: BudgetChoice
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


#: Seconds by which a plan may miss in its middle before it is changed: the rounding of clocks that run for years.
_ROUNDING = 1e-6
#: Where nothing else decided, a lower level is committed so many times a commit's seconds before the deadline: once
#: for the commit, once for a slow one. And so many seconds at least.
_FALL_BACK, _FALL_BACK_LEAST = 2.0, 0.5
#: Seconds that the moments need at least for weights to be committed before them though all fits: clouds that promise 30 s
#: have taken machines after 8 to 10.
_EARLY = 2.0

_NOTHING = StoredBytes()


def plan(at: BudgetInputs) -> BudgetPlan:
    """The best that fits, at the expected rate."""
    everything, found = at.sizes.a + at.sizes.b, at.background
    if at.now + at.least_commit > at.deadline:
        return _keep(at, f"a commit takes {at.least_commit:.1f} s, and {_left(at)}")
    if found is not None and found.step == at.step and found.left < everything and _fits(at, found.left):
        return _promote(at, found, "it holds this very step")
    if _fits(at, everything):
        return _whole(BudgetChoice.FULL, "everything", at, everything)
    missed = _verdict(at, everything)
    if found is not None and _gains(at, found) and _fits(at, found.left):
        return _promote(at, found, f"everything does not fit: {missed}")
    if at.sizes.b_rounded is not None and _fits(at, at.sizes.a + at.sizes.b_rounded):
        return _rounded(at, _NOTHING, missed)
    if _may_fit(at, at.sizes.a) or (at.last is None and found is None):
        return _lower(at, _NOTHING, missed)
    return _keep(at, f"parameters and extras alone do not fit: {_verdict(at, at.sizes.a)}")


def replan(before: BudgetPlan, at: BudgetInputs, stored: StoredBytes) -> BudgetPlan:
    """The plan that holds from now on: the same, or a lesser one. Ask as bytes leave, and when the deadline moves.

    Never KEEP for one that writes: until the deadline the link may recover, and nothing else can be done with the
    time. Never a better one either, but for moments that were to be rounded, while none of them is begun: they are
    taken as they are where that fits on a bad day too.

    Args:
        before: what is being done.
        at: as it stands now: the time, the rate, a deadline that may have moved earlier, what is left of the
            background checkpoint. The sizes stay what they were.
        landed: how far it is.
    """
    if before.choice is BudgetChoice.KEEP:
        return before
    if before.choice is BudgetChoice.PROMOTE:
        if at.background is None:
            return before
        if _fits(at, at.background.left, _ROUNDING) or not _fits(at, at.sizes.a):
            return _timed(before.choice, before.reason, at, at.background.left)
        return _lower(at, _NOTHING, _verdict(at, at.background.left))
    if before.choice is BudgetChoice.LOWER:
        return _timed(
            before.choice, before.reason, at, _rest(at.sizes.a, _of_a(stored)), stored, lower_first=True
        )
    untouched = not (stored.b or stored.b_begun)
    if before.choice is BudgetChoice.FULL_LOSSY and untouched and at.rate is not None:
        rest = _rest(_bytes(BudgetChoice.FULL, at), stored)
        if _slack(at, rest, at.rate.low) >= 0:
            return _whole(BudgetChoice.FULL, "everything", at, rest, stored)
    rest = _rest(_bytes(before.choice, at), stored)
    if rest == 0 or _fits(at, rest, _ROUNDING):
        return _whole(before.choice, before.reason, at, rest, stored, before)
    may_round = before.choice is BudgetChoice.FULL and at.sizes.b_rounded is not None and untouched
    if may_round and _fits(at, _rest(_bytes(BudgetChoice.FULL_LOSSY, at), stored)):
        return _rounded(at, stored, _verdict(at, rest))
    return _lower(at, stored, _verdict(at, rest))


def early(moments: int, rate: float | None) -> bool:
    """Whether moments of so many bytes take long enough for the cloud to break its promise meanwhile."""
    return rate is not None and moments / rate > _EARLY


# --- one plan each ---


def _whole(
    choice: BudgetChoice,
    why: str,
    at: BudgetInputs,
    rest: int,
    stored: StoredBytes = _NOTHING,
    before: BudgetPlan | None = None,
) -> BudgetPlan:
    """A full save, safe on a bad day too: then what is worth most is committed on the way, if that leaves the time."""
    reason = before.reason if before is not None else f"{why}: {_verdict(at, rest)}"
    lower_first = before is not None and before.lower_first
    if at.rate is not None and at.sizes.b and not lower_first:
        unsure = _slack(at, rest, at.rate.low) < 0
        lower_first = unsure and _slack(at, rest, at.rate.expected) >= at.commit
    return _timed(choice, reason, at, rest, stored, lower_first=lower_first)


def _rounded(at: BudgetInputs, stored: StoredBytes, missed: str) -> BudgetPlan:
    why = f"everything, with its moments rounded: as it is it does not fit ({missed}); rounded"
    return _whole(
        BudgetChoice.FULL_LOSSY, why, at, _rest(_bytes(BudgetChoice.FULL_LOSSY, at), stored), stored
    )


def _promote(at: BudgetInputs, found: UploadInProgress, why: str) -> BudgetPlan:
    what = f"the background checkpoint of step {found.step}, {found.age:.0f} s of training before this one, is let finish"
    return _timed(
        BudgetChoice.PROMOTE, f"{what}, for {why}; its rest: {_verdict(at, found.left)}", at, found.left
    )


def _lower(at: BudgetInputs, stored: StoredBytes, missed: str) -> BudgetPlan:
    rest = _rest(at.sizes.a, _of_a(stored))
    tried = "" if _fits(at, rest) else ", which is tried, for nothing else would fit"
    if at.sizes.b == 0:  # then parameters and extras are everything
        return _timed(BudgetChoice.FULL, f"everything: {_verdict(at, rest)}{tried}", at, rest, stored)
    reason = f"parameters and extras first, for everything does not fit: {missed}; they: {_verdict(at, rest)}{tried}"
    return _timed(BudgetChoice.LOWER, reason, at, rest, stored, lower_first=True)


def _keep(at: BudgetInputs, why: str) -> BudgetPlan:
    stays = "and nothing was committed before"
    if at.last is not None:
        stays = f"step {at.last.step} stays, {at.last.age:.0f} s of training before this one"
    return BudgetPlan(BudgetChoice.KEEP, f"nothing is saved, {why}; {stays}")


def _timed(
    choice: BudgetChoice,
    reason: str,
    at: BudgetInputs,
    rest: int,
    stored: StoredBytes = _NOTHING,
    *,
    lower_first: bool = False,
) -> BudgetPlan:
    """With its end, and the moment at which the lower level is the way out."""
    whole = choice in (BudgetChoice.FULL, BudgetChoice.FULL_LOSSY)
    way_out = whole and at.sizes.b > 0 and not lower_first and not stored.committed
    fall_back_at = at.deadline - max(_FALL_BACK * at.commit, _FALL_BACK_LEAST) if way_out else math.inf
    if at.rate is None:
        return BudgetPlan(choice, reason, lower_first=lower_first, fall_back_at=fall_back_at)
    moments = _bytes(choice, at) - at.sizes.a - stored.b
    soon = way_out and at.lower_counts and early(moments, at.rate.expected)
    twice = whole and lower_first and not stored.committed
    end = at.now + rest / at.rate.expected + at.commit * (2 if twice else 1)
    return BudgetPlan(choice, reason, end, at.deadline - end, lower_first, fall_back_at, soon)


# --- whether it fits ---


def _slack(at: BudgetInputs, nbytes: int, rate: float) -> float:
    return at.deadline - at.now - at.commit - nbytes / rate


def _fits(at: BudgetInputs, nbytes: int, rounding: float = 0.0) -> bool:
    """At the expected rate. Of a link of which nothing is known the best is hoped: `replan` cuts it down."""
    return at.rate is None or _slack(at, nbytes, at.rate.expected) >= -rounding


def _may_fit(at: BudgetInputs, nbytes: int) -> bool:
    """On a good day."""
    return at.rate is None or _slack(replace(at, commit=at.least_commit), nbytes, at.rate.high) >= 0


def _gains(at: BudgetInputs, found: UploadInProgress) -> bool:
    """One that is not newer than the last would be committed for nothing."""
    return at.last is None or found.step > at.last.step


def _bytes(choice: BudgetChoice, at: BudgetInputs) -> int:
    rounded = at.sizes.b_rounded if choice is BudgetChoice.FULL_LOSSY else None
    return at.sizes.a + (at.sizes.b if rounded is None else rounded)


def _rest(nbytes: int, stored: StoredBytes) -> int:
    """Bytes that are still to be sent of so many."""
    return max(0, nbytes - stored.a - stored.b)


def _of_a(stored: StoredBytes) -> StoredBytes:
    """Tier A alone is looked at: what of tier B is gone is no part of it."""
    return replace(stored, b=0)


# --- in words ---


def _verdict(at: BudgetInputs, nbytes: int) -> str:
    """The numbers that decide."""
    if at.rate is None:
        return f"{_amount(nbytes)}, how fast is not known yet, and {_left(at)}"
    seconds = nbytes / at.rate.expected + at.commit
    return f"{_amount(nbytes)} at {_amount(at.rate.expected)}/s need {seconds:.1f} s, and {_left(at)}"


def _left(at: BudgetInputs) -> str:
    return "there is no deadline" if math.isinf(at.deadline) else f"{at.deadline - at.now:.1f} s are left"


def _amount(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
