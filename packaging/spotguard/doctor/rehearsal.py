"""The verdict of a drill: the doctor's own sentence, from what happened instead of what was measured beforehand.

What happened decides: a save that lost something did not fit, whatever the numbers make of it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from spotguard.agent.core.budget import Fit, reserve_of

from .checks import job
from .verdict import values, ways

_LONGER = (
    "see what a longer warning does (spotguard drill --window), and what the link does now (spotguard doctor)"
)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    fit: Fit
    #: What is to be said of a save that was not everything as it stood; "" of one that was.
    short: str
    #: What the script does wrong, and after a semicolon what to do about it; "" where nothing is known.
    misuse: str = ""

    @property
    def fits(self) -> bool | None:
        return False if self.short else self.fit.fits

    def verdict(self) -> str:
        words = f"{self.fit.numbers()}: {self.short}" if self._disagrees else self.fit.verdict()
        wrong, _, _ = self.misuse.partition("; ")
        return f"{words}; {wrong}" if wrong else words

    def advice(self) -> str:
        """What would make it fit, or right; "" where it is."""
        if self.misuse:
            return self.misuse.partition("; ")[2]
        if self.fits is not False:
            return ""
        return _LONGER if self._disagrees else "; ".join(ways(self.fit))

    def as_json(self) -> dict[str, Any]:
        """With the keys of the doctor's verdict."""
        known = values(self.fit)
        if self._disagrees:  # by these numbers it would have fitted, so they are worth nothing
            known |= dict.fromkeys(("seconds", "slack_seconds", "most_bytes", "enough_seconds"))
        said = {"found": self.verdict(), "advice": self.advice(), "misuse": self.misuse}
        return {**said, **known, "fits": self.fits}

    @property
    def _disagrees(self) -> bool:
        """Whether it was not saved, and the numbers do not say so."""
        return bool(self.short) and self.fit.fits is not False


def judge(outcome: Mapping[str, Any], before: Sequence[job.Session]) -> Rehearsed | None:
    """
    Args:
        outcome: of the drill, as its JSON has it.
        before: who was registered, as `status` has it.

    Returns:
        None where nothing of ours was to be saved: a function of `on_notice` saves by itself.
    """
    misuse = next(iter(job.misuse(before)), "")
    short, sent = _short(outcome, misused=bool(misuse)), int(outcome["bytes"])
    nbytes = max(job.nbytes(before), sent) if short else sent
    if not nbytes:
        return None
    left, rate = outcome["left"], outcome["rate"]
    reserve = min(
        outcome["reserve"], left / 2
    )  # one below a second was given more, as a last try, and kept more back
    # What it took beside its bytes: until the state stood still and the first of them left.
    took = None if short else outcome["committed"]
    beside = took - sent / rate if took is not None and rate else outcome["first_byte"] or 0.0
    usual = isclose(reserve, reserve_of(left, None), abs_tol=0.05)
    fit = Fit(
        nbytes, rate or _known(before), left, reserve, max(0.0, beside), None if usual else float(reserve)
    )
    return Rehearsed(fit, short, misuse)


def _short(outcome: Mapping[str, Any], *, misused: bool) -> str:
    if outcome["committed"] is None:
        return "NOT saved, nothing was committed"
    if outcome["level"] == "partial-extras":
        return "saved without the extras of a rank that did not answer"
    if outcome["level"] != "full":
        # An optimizer that nobody registered has the moments: more time would not bring them.
        return ("" if misused else "does not fit, ") + f"the {outcome['level']} alone were saved"
    # An earlier step, or rounded moments: the outcome's own line says which, and why.
    return "does not fit as it stands" if outcome.get("less") else ""


def _known(before: Sequence[job.Session]) -> float | None:
    """Bytes a second by the job's own last saves. The ranks of a run save beside each other; runs each by itself, over the
    same link."""
    runs: dict[str, float] = {}
    for each in job.savers(before):
        runs[each["run_id"]] = runs.get(each["run_id"], 0.0) + float(each.get("rate") or 0.0)
    return max(runs.values(), default=0.0) or None
