"""The check of the window: the seconds that a notice leaves, the reserve, and the rest for the save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spotguard.agent.core.budget import expected_window, reserve_of

from ..finding import Finding, fails, ok, warning

#: Source of each cloud's usual warning.
_USUAL = {
    "aws": "AWS gives them",
    "gcp": "what GCP gives, unless the VM was made with more",
    "azure": "what Azure promises, and often less comes",
    "none": "what a SIGTERM leaves",
}
_GCP = "120 s are available: make the VM with --preemption-notice-duration=120s, and pass --window 120 here and to `run`"
_CUT = "--window only shortens the notice of this cloud: leave it out, or pass less"


@dataclass(frozen=True, slots=True)
class Window:
    """The window and its reserve, in seconds."""

    warning: float
    reserve: float
    finding: Finding
    #: The reserve that was set; None if it is in proportion to the window.
    said: float | None = None

    @property
    def budget(self) -> float:
        return self.warning - self.reserve


@dataclass(frozen=True, slots=True)
class Counted:
    """The window of a run that is already started, by the run's own options."""

    run_id: str
    seconds: float
    #: `--reserve`; None if it is in proportion to the window.
    reserve: float | None


def count_on(
    cloud: str, said: float | None, told: float | None, reserve: float | None, run: Counted | None = None
) -> Window:
    """Return the window that a save can count on.

    Args:
        cloud: "aws", "gcp", "azure" or "none".
        said: `--window`, in seconds.
        told: seconds of warning that the cloud's own service reports for this machine.
        reserve: `--reserve`, in seconds.
        run: a started run. Its options count if none are passed here, as its store does.
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
    cloud: str, given: float | None, reported: float | None, seconds: float, found: str, facts: dict[str, Any]
) -> Finding:
    if seconds - facts["reserve_seconds"] <= 0:
        return fails("window", found, "nothing is left to save in: pass a longer --window", **facts)
    if given is not None and given > seconds:
        return warning("window", found, _CUT, **facts)
    if cloud == "gcp" and given is None and reported is None and seconds == expected_window(cloud, None):
        return warning("window", found, _GCP, **facts)
    return ok("window", found, **facts)


def _whence(cloud: str, given: float | None, reported: float | None) -> str:
    if given is not None:
        return f"--window {given:g}"
    if reported is not None:
        return "by the metadata service"
    return _USUAL.get(cloud, _USUAL["none"])
