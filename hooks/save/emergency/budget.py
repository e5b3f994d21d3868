"""The budget of an emergency save: a plan from bytes, a rate and a deadline, and later a lesser plan from that plan.

`plan` takes the first of these choices that fits:

1. the full state;
2. the background checkpoint under way, if its rest fits;
3. the full state with rounded moments, if that is allowed;
4. parameters and extras, with the moments after them;
5. nothing: the last committed checkpoint stays.

A background checkpoint of this very step comes before the full state. If there is neither a committed checkpoint nor one under
way, the plan is to try 4, even if the link stood still so far: an estimate of such a link is wrong by any factor.

All plans write in the same order, which makes a change of plan cheap: **every object of parameters and extras (tier A) before
the first object of the moments (tier B), and no object that holds both.** A full save is a lower save that went on.

The inputs and the plan are values (`BudgetInputs`, `BudgetPlan` and their parts). Bytes are those that go over the link; times
are monotonic seconds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from ...commit.plan.throughput import LinkRate

# --- inputs and plan ---


class BudgetChoice(enum.Enum):
    """The choices of a plan. Each is worth more than those below it."""

    #: Parameters, extras and moments, as they are.
    FULL = "full"
    #: The background checkpoint under way finishes, and is committed.
    PROMOTE = "promote"
    #: Parameters and extras as they are, moments rounded.
    FULL_LOSSY = "full-lossy"
    #: Parameters and extras are committed, then the moments follow. If all moments arrive, a full manifest follows.
    LOWER = "lower"
    #: Nothing is written. The last committed checkpoint stays.
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class SaveSizes:
    """Bytes of the state, by tier. Tensors that refer to an earlier checkpoint of the attempt are not written again."""

    #: Tier A: parameters, buffers, extras.
    parameters: int
    #: Tier B: the optimizer's moments, and everything else that the lower level lacks.
    moments: int
    #: Tier B with its moments rounded; None if that is not allowed.
    rounded: int | None = None
    #: Bytes of tier A that are unchanged, so that the save only refers to them.
    unchanged: int = 0

    @property
    def a(self) -> int:
        """Bytes of tier A to be written."""
        return max(0, self.parameters - self.unchanged)

    @property
    def b(self) -> int:
        """Bytes of tier B to be written."""
        return self.moments

    @property
    def b_rounded(self) -> int | None:
        """Bytes of tier B to be written with rounded moments; None if that is not allowed or would save nothing."""
        if self.rounded is None:
            return None
        return self.rounded if self.rounded < self.b else None


@dataclass(frozen=True, slots=True)
class EarlierCheckpoint:
    """A committed checkpoint."""

    step: int
    #: Seconds of training since that step, which a restore of it repeats.
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
    """All inputs of a plan."""

    now: float
    #: When the commit must be done, with the reserve already cut off (`PreemptionNotice.save_by`); infinity without a deadline.
    deadline: float
    #: The completed step that would be saved now.
    step: int
    sizes: SaveSizes
    #: The link's rate; None if it is not known.
    rate: LinkRate | None
    #: Seconds for a manifest and its marker.
    commit: float = 0.0
    background: UploadInProgress | None = None
    last: EarlierCheckpoint | None = None
    #: The same on a good day. A save that would not fit even then does not begin.
    commit_at_best: float = math.inf
    #: Whether a restore would take the lower level of this step (`ranking.counts`).
    lower_counts: bool = False

    @property
    def least_commit(self) -> float:
        return min(self.commit, self.commit_at_best)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """How far the save of a plan is."""

    #: Bytes of each tier that have left for the store, as it is written.
    a: int = 0
    b: int = 0
    #: Whether tier B was begun. From then on its rounding does not change.
    b_begun: bool = False


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """A plan: the choice, its reason and its times."""

    choice: BudgetChoice
    #: The numbers that decided, for a person. The outcome repeats them.
    reason: str
    #: When this choice is committed, at the expected rate; None if the rate is not known, or nothing is saved.
    end: float | None = None
    #: Seconds from `end` to the deadline. Below 0 the save is only a try: nothing else would fit, and trying loses nothing.
    slack: float | None = None
    #: Commit the lower level as soon as tier A is in the store. True for LOWER, and for a full save that fits at the
    #: expected rate but not on a bad day.
    lower_first: bool = False
    #: When to commit the lower level if all of tier A is in the store and tier B is not. The puts go on beside the commit.
    #: This does not wait for `replan`: on a link that stands still nothing lands. Infinity if that does not help, or was done.
    fall_back_at: float = math.inf
    #: Everything fits, and the lower level is committed on the way nevertheless, because clouds break their promise. The
    #: moments go on beside the commit.
    early: bool = False


#: Seconds by which a running plan may miss the deadline before it changes: the rounding of clocks that run for years.
_ROUNDING = 1e-6
#: If nothing else decided, a lower level is committed `_FALL_BACK` times a commit's seconds before the deadline: once for the
#: commit, once for a slow one. `_FALL_BACK_LEAST`: the least number of seconds before the deadline.
_FALL_BACK, _FALL_BACK_LEAST = 2.0, 0.5
#: If the moments take longer than this (seconds), the weights are committed before them, although everything fits. Clouds
#: that promise 30 s have taken machines after 8 to 10 s.
_EARLY = 2.0

_NOTHING = StoredBytes()


def plan(at: BudgetInputs) -> BudgetPlan:
    """Return the best plan that fits at the expected rate."""
    everything, upload = at.sizes.a + at.sizes.b, at.background
    if at.now + at.least_commit > at.deadline:
        return _keep(at, f"a commit takes {at.least_commit:.1f} s, and {_left(at)}")
    if upload is not None and upload.step == at.step and upload.left < everything and _fits(at, upload.left):
        return _promote(at, upload, "it is of this very step")
    if _fits(at, everything):
        return _whole(BudgetChoice.FULL, "the full state", at, everything)
    missed = _verdict(at, everything)
    if upload is not None and _gains(at, upload) and _fits(at, upload.left):
        return _promote(at, upload, f"the full state does not fit: {missed}")
    if at.sizes.b_rounded is not None and _fits(at, at.sizes.a + at.sizes.b_rounded):
        return _rounded(at, _NOTHING, missed)
    if _may_fit(at, at.sizes.a) or (at.last is None and upload is None):
        return _lower(at, _NOTHING, missed)
    return _keep(at, f"parameters and extras alone do not fit: {_verdict(at, at.sizes.a)}")


def replan(before: BudgetPlan, at: BudgetInputs, stored: StoredBytes) -> BudgetPlan:
    """Return the plan that holds from now on: the same plan, or a lesser one.

    Call this as bytes leave, and when the deadline moves. A plan that writes never becomes KEEP: until the deadline the link may
    recover, and the time has no other use. A plan does not become a better one either, with one exception: moments that were to
    be rounded. If none of them is begun, and they fit unrounded on a bad day too, they are saved unrounded.

    Args:
        before: the present plan.
        at: the present inputs: the time, the rate, a deadline that may have moved earlier, the rest of the background
            checkpoint. The sizes must stay the same.
        stored: how far the save is.
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
            return _whole(BudgetChoice.FULL, "the full state", at, rest, stored)
    rest = _rest(_bytes(before.choice, at), stored)
    if rest == 0 or _fits(at, rest, _ROUNDING):
        return _whole(before.choice, before.reason, at, rest, stored, before)
    may_round = before.choice is BudgetChoice.FULL and at.sizes.b_rounded is not None and untouched
    if may_round and _fits(at, _rest(_bytes(BudgetChoice.FULL_LOSSY, at), stored)):
        return _rounded(at, stored, _verdict(at, rest))
    return _lower(at, stored, _verdict(at, rest))


def early(moments: int, rate: float | None) -> bool:
    """Return whether the upload of the moments takes long enough for the cloud to break its promise meanwhile.

    Args:
        moments: bytes.
        rate: bytes a second; None if unknown.
    """
    return rate is not None and moments / rate > _EARLY


# --- the plan of each choice ---


def _whole(
    choice: BudgetChoice,
    why: str,
    at: BudgetInputs,
    rest: int,
    stored: StoredBytes = _NOTHING,
    before: BudgetPlan | None = None,
) -> BudgetPlan:
    """Return a full save that is safe on a bad day too.

    If it would not fit on a bad day, the lower level is committed on the way, provided that the time suffices for that.
    """
    reason = before.reason if before is not None else f"{why}: {_verdict(at, rest)}"
    lower_first = before is not None and before.lower_first
    if at.rate is not None and at.sizes.b and not lower_first:
        unsure = _slack(at, rest, at.rate.low) < 0
        lower_first = unsure and _slack(at, rest, at.rate.expected) >= at.commit
    return _timed(choice, reason, at, rest, stored, lower_first=lower_first)


def _rounded(at: BudgetInputs, stored: StoredBytes, missed: str) -> BudgetPlan:
    why = f"the full state with rounded moments: unrounded it does not fit ({missed}); rounded"
    return _whole(
        BudgetChoice.FULL_LOSSY, why, at, _rest(_bytes(BudgetChoice.FULL_LOSSY, at), stored), stored
    )


def _promote(at: BudgetInputs, upload: UploadInProgress, why: str) -> BudgetPlan:
    what = (
        f"spotguard finishes the background checkpoint of step {upload.step}, {upload.age:.0f} s of "
        "training before this one"
    )
    return _timed(
        BudgetChoice.PROMOTE, f"{what}, because {why}; its rest: {_verdict(at, upload.left)}", at, upload.left
    )


def _lower(at: BudgetInputs, stored: StoredBytes, missed: str) -> BudgetPlan:
    rest = _rest(at.sizes.a, _of_a(stored))
    tried = "" if _fits(at, rest) else "; spotguard tries it, because nothing else would fit"
    if at.sizes.b == 0:  # then parameters and extras are everything
        return _timed(BudgetChoice.FULL, f"the full state: {_verdict(at, rest)}{tried}", at, rest, stored)
    reason = (
        f"parameters and extras first, because the full state does not fit: {missed}; parameters and "
        f"extras: {_verdict(at, rest)}{tried}"
    )
    return _timed(BudgetChoice.LOWER, reason, at, rest, stored, lower_first=True)


def _keep(at: BudgetInputs, why: str) -> BudgetPlan:
    stays = "and no sound checkpoint is known before this one"
    if at.last is not None:
        stays = f"step {at.last.step} stays, {at.last.age:.0f} s of training before this one"
    return BudgetPlan(BudgetChoice.KEEP, f"nothing is saved: {why}; {stays}")


def _timed(
    choice: BudgetChoice,
    reason: str,
    at: BudgetInputs,
    rest: int,
    stored: StoredBytes = _NOTHING,
    *,
    lower_first: bool = False,
) -> BudgetPlan:
    """Return the plan with its end, and with the time at which to fall back to the lower level."""
    full = choice in (BudgetChoice.FULL, BudgetChoice.FULL_LOSSY)
    way_out = full and at.sizes.b > 0 and not lower_first
    fall_back_at = at.deadline - max(_FALL_BACK * at.commit, _FALL_BACK_LEAST) if way_out else math.inf
    if at.rate is None:
        return BudgetPlan(choice, reason, lower_first=lower_first, fall_back_at=fall_back_at)
    moments = _bytes(choice, at) - at.sizes.a - stored.b
    soon = way_out and at.lower_counts and early(moments, at.rate.expected)
    end = at.now + rest / at.rate.expected + at.commit * (2 if full and lower_first else 1)
    return BudgetPlan(choice, reason, end, at.deadline - end, lower_first, fall_back_at, soon)


# --- whether it fits ---


def _slack(at: BudgetInputs, nbytes: int, rate: float) -> float:
    return at.deadline - at.now - at.commit - nbytes / rate


def _fits(at: BudgetInputs, nbytes: int, rounding: float = 0.0) -> bool:
    """Return whether the bytes fit at the expected rate. If the rate is unknown they do: `replan` lowers the plan later."""
    return at.rate is None or _slack(at, nbytes, at.rate.expected) >= -rounding


def _may_fit(at: BudgetInputs, nbytes: int) -> bool:
    """Return whether the bytes fit on a good day."""
    return at.rate is None or _slack(replace(at, commit=at.least_commit), nbytes, at.rate.high) >= 0


def _gains(at: BudgetInputs, upload: UploadInProgress) -> bool:
    """Return whether the background checkpoint is newer than the last one: else its commit would gain nothing."""
    return at.last is None or upload.step > at.last.step


def _bytes(choice: BudgetChoice, at: BudgetInputs) -> int:
    rounded = at.sizes.b_rounded if choice is BudgetChoice.FULL_LOSSY else None
    return at.sizes.a + (at.sizes.b if rounded is None else rounded)


def _rest(nbytes: int, stored: StoredBytes) -> int:
    """Return how many of `nbytes` are still to be sent."""
    return max(0, nbytes - stored.a - stored.b)


def _of_a(stored: StoredBytes) -> StoredBytes:
    """Return the progress of tier A alone, without the bytes of tier B."""
    return replace(stored, b=0)


# --- in words ---


def _verdict(at: BudgetInputs, nbytes: int) -> str:
    """Return the numbers that decide, as text."""
    if at.rate is None:
        return f"{_amount(nbytes)} at a rate that is not known yet, and {_left(at)}"
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
