"""The verdict of a drill: the doctor's sentence, from the drill's outcome instead of a measurement.

The outcome decides: a save that lost something did not fit, even if the numbers say that it would.
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
class DrillVerdict:
    fit: Fit
    #: The loss of the save, in words; "" if it saved the whole state of the current step.
    short: str
    #: The reason that the outcome names; "" if there is none.
    reason: str = ""
    #: How the script misuses spotguard, and after a semicolon the advice; "" if no misuse is known.
    misuse: str = ""

    @property
    def fits(self) -> bool | None:
        return False if self.short else self.fit.fits

    def verdict(self) -> str:
        words = f"{self.fit.numbers()}: {self.short}" if self._disagrees else self.fit.verdict()
        wrong, _, _ = self.misuse.partition("; ")
        return f"{words}; {wrong}" if wrong else words

    def advice(self) -> str:
        """Return the advice that would make the save fit, or mend the script; "" if nothing is wrong."""
        if self.misuse:
            return self.misuse.partition("; ")[2]
        if self.fits is not False:
            return ""
        if "[SG502]" in self.reason:
            return (
                "call guard.step() after each step of the training; a step must be shorter than the warning"
            )
        return _LONGER if self._disagrees else "; ".join(ways(self.fit))

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values, with the keys of the doctor's verdict."""
        known = values(self.fit)
        if self._disagrees:  # by these numbers the save would have fitted, so they are wrong
            known |= dict.fromkeys(("seconds", "slack_seconds", "most_bytes", "enough_seconds"))
        words = {"found": self.verdict(), "advice": self.advice(), "misuse": self.misuse}
        return {**words, **known, "fits": self.fits}

    @property
    def _disagrees(self) -> bool:
        """Report whether the save lost something although its numbers fit."""
        return bool(self.short) and self.fit.fits is not False


def judge(outcome: Mapping[str, Any], before: Sequence[job.Session]) -> DrillVerdict | None:
    """Return the verdict of a drill.

    Args:
        outcome: the drill's outcome, as in its JSON.
        before: the sessions registered before the drill, as in `status`.

    Returns:
        None if spotguard had nothing to save: a function of `on_notice` saves by itself.
    """
    misuse = next(iter(job.misuse(before)), "")
    short, sent = _short(outcome, misused=bool(misuse)), int(outcome["bytes"])
    nbytes = max(job.nbytes(before), sent) if short else sent
    if not nbytes:
        return None
    left, rate = outcome["left"], outcome["rate"]
    # A window below a second got a longer one as a last try, and a larger reserve with it.
    reserve = min(outcome["reserve"], left / 2)
    # Seconds of the save without its bytes: until the state stood still and the first byte left.
    took = None if short else outcome["committed"]
    beside = took - sent / rate if took is not None and rate else outcome["first_byte"] or 0.0
    usual = isclose(reserve, reserve_of(left, None), abs_tol=0.05)
    fit = Fit(
        nbytes, rate or _known(before), left, reserve, max(0.0, beside), None if usual else float(reserve)
    )
    return DrillVerdict(fit, short, str(outcome.get("why") or ""), misuse)


def _short(outcome: Mapping[str, Any], *, misused: bool) -> str:
    if outcome["committed"] is None:
        return "NOT saved, nothing was committed"
    if outcome["level"] == "partial-extras":
        return "saved without the extras of a rank that did not answer"
    if outcome["level"] != "full":
        # The moments belong to an unregistered optimizer, so more time would not save them.
        return ("" if misused else "does not fit, ") + f"the {outcome['level']} alone were saved"
    # The save is of an earlier step, or has rounded moments. The outcome's own line has the reason.
    return "does not fit as it stands" if outcome.get("less") else ""


def _known(before: Sequence[job.Session]) -> float | None:
    """Return the bytes per second of the job's own last saves; None if it has made none.

    The ranks of a run save at the same time, so their rates add up. Runs save separately over the same link, so the highest
    of their rates counts.
    """
    runs: dict[str, float] = {}
    for each in job.savers(before):
        runs[each["run_id"]] = runs.get(each["run_id"], 0.0) + float(each["rate"] or 0.0)
    return max(runs.values(), default=0.0) or None
