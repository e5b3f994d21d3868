"""How many seconds there are: what a notice leaves, what is kept back of it, and what is left for the save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spotguard.agent.core.budget import expected_window, reserve_of

from ..finding import Finding, fails, ok, warning

#: Whose word each cloud's usual warning is.
_USUAL = {
    "aws": "AWS gives them",
    "gcp": "what GCP gives, unless the VM was made with more",
    "azure": "what Azure promises, and often less comes",
    "none": "what a SIGTERM leaves",
}
_GCP = "120 s are to be had: make the VM with --preemption-notice-duration=120s, and say --window 120 here and to `run`"
_CUT = "--window only shortens what this cloud's notice says itself: leave it out, or say less"


@dataclass(frozen=True, slots=True)
class Window:
    """In seconds."""

    warning: float
    reserve: float
    finding: Finding
    #: Of the reserve, what somebody said; None: it is in proportion to the window.
    said: float | None = None

    @property
    def budget(self) -> float:
        return self.warning - self.reserve


@dataclass(frozen=True, slots=True)
class Counted:
    """What a run counts on that was started already, with words of its own."""

    run_id: str
    seconds: float
    #: `--reserve`; None: in proportion.
    reserve: float | None


def count_on(
    cloud: str, said: float | None, told: float | None, reserve: float | None, run: Counted | None = None
) -> Window:
    """
    Args:
        said: `--window`.
        told: what the cloud's own service tells of this machine.
        reserve: `--reserve`.
        run: its words hold where none are said here, as its store does.
    """
    seconds = told if said is None and told is not None else expected_window(cloud, said)
    whence = _whence(cloud, said, told)
    if run is not None and said is None and run.seconds != seconds:
        seconds, whence = run.seconds, f"what run {run.run_id} counts on"
    reserve = run.reserve if run is not None and reserve is None else reserve
    kept = reserve_of(seconds, reserve)
    found = f"{seconds:g} s of warning ({whence}), {kept:g} s in reserve: {seconds - kept:g} s for a save"
    facts: dict[str, Any] = {
        "warning_seconds": seconds,
        "reserve_seconds": kept,
        "budget_seconds": seconds - kept,
    }
    return Window(seconds, kept, _finding(cloud, said, told, seconds, found, facts), reserve)


def _finding(
    cloud: str, said: float | None, told: float | None, seconds: float, found: str, facts: dict[str, Any]
) -> Finding:
    if seconds - facts["reserve_seconds"] <= 0:
        return fails("window", found, "nothing is left to save in: say a longer --window", **facts)
    if said is not None and said > seconds:
        return warning("window", found, _CUT, **facts)
    if cloud == "gcp" and said is None and told is None and seconds == expected_window(cloud, None):
        return warning("window", found, _GCP, **facts)
    return ok("window", found, **facts)


def _whence(cloud: str, said: float | None, told: float | None) -> str:
    if said is not None:
        return f"--window {said:g}"
    if told is not None:
        return "the metadata service says so"
    return _USUAL.get(cloud, _USUAL["none"])
