"""The doctor's verdict: whether the state would be saved in time, or how large a state would be."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from spotguard.agent.core.budget import Fit
from spotguard.providers.text import amount

from .finding import Finding, fails, ok, warning

if TYPE_CHECKING:  # a drill's verdict needs no measuring module
    from spotguard.agent.config.options import Options

    from .checks.window import Window
    from .rate_measurement import Measured

#: Small puts that follow the objects of a save, one after the other: a manifest and a marker.
_COMMITS = 2
_SLOWER = "training ran beside those, or something else than the link holds a save up: see what a whole one takes, spotguard drill"
_ABOVE = "see what fails above"
#: Adam keeps two more numbers for each parameter, so the parameters are a third of the state.
_WEIGHTS = 3
#: Share of the state that is left if its moments are rounded from 32 bits to bfloat16: they are two thirds, and take half.
_ROUNDED = 2 / 3


def values(fit: Fit) -> dict[str, Any]:
    """Return the figures behind a verdict for JSON. A visit and a drill have the same keys."""
    return {
        "fits": fit.fits,
        "bytes": fit.nbytes,
        "rate": _rounded(fit.rate),
        "seconds": _rounded(fit.seconds),
        "slack_seconds": _rounded(fit.slack),
        "most_bytes": fit.most,
        # Rounded up, because slightly less would not be enough.
        "enough_seconds": None if fit.enough is None else ceil(fit.enough * 100) / 100,
    }


def judge(
    window: Window,
    nbytes: int | None,
    measured: Measured | None,
    put_seconds: float,
    options: Options,
    cloud: str,
    own: float | None = None,
    *,
    misused: bool = False,
    waits: float = 0.0,
) -> Finding:
    """Return the verdict as a finding.

    Args:
        window: the seconds of warning, and the reserve.
        nbytes: bytes of all state that is registered here; None if no process is registered.
        measured: the store's rate; None if it could not be measured.
        put_seconds: seconds that one small put took.
        options: the options of the visit.
        cloud: "aws", "gcp", "azure" or "none".
        own: seconds that a save takes by the job's own last saves; None if the job has made none.
        misused: the script misuses spotguard, so that a save in time is not what a resumed run needs.
        waits: seconds from the notice to the first byte, as a trial has measured them.
    """
    fit = fit_of(window, nbytes, measured, put_seconds, waits)
    rate = fit.rate
    facts = values(fit)
    if nbytes is None:
        facts |= dict.fromkeys(("fits", "bytes", "seconds", "slack_seconds", "enough_seconds"))
    if rate is None:
        return fails("verdict", "not known: how fast the store takes bytes was not measured", _ABOVE, **facts)
    if nbytes is None:
        found = f"{amount(fit.most or 0)} would fit into {window.budget:g} s at {amount(rate)}/s"
        return ok("verdict", found, "start the job and ask again: its state decides", **facts)
    if not fit.fits:
        return fails("verdict", fit.verdict(), "; ".join(ways(fit, cloud, options.lossy_moments)), **facts)
    if misused:
        return fails(
            "verdict", f"{fit.verdict()}, but the script does not let it be saved right", _ABOVE, **facts
        )
    if own is not None and own > window.budget:
        found = f"{fit.verdict()}; by the job's own last saves it takes {own:.0f} s"
        return warning("verdict", found, _SLOWER, **facts)
    if (fit.slack or 0.0) < 0.1 * window.budget:
        return warning(
            "verdict",
            fit.verdict(),
            "a busier link than just now would take that: "
            + "; ".join(ways(fit, cloud, options.lossy_moments)),
            **facts,
        )
    return ok("verdict", fit.verdict(), **facts)


def fit_of(
    window: Window, nbytes: int | None, measured: Measured | None, put_seconds: float, waits: float = 0.0
) -> Fit:
    """Return the comparison of a save with the window. The arguments are those of `judge`."""
    rate = None if measured is None else measured.rate
    return Fit(nbytes or 0, rate, window.warning, window.reserve, _COMMITS * put_seconds + waits, window.said)


def ways(fit: Fit, cloud: str = "", rounds: bool = True) -> list[str]:
    """Return the ways to make the save fit, the best first.

    Args:
        fit: the figures of the save.
        cloud: "" if it is not known.
        rounds: `--lossy-moments` is set already, or it is not known whether it is.
    """
    ways: list[str] = []
    most, enough = fit.most or 0, fit.enough or 0.0
    if not fit.fits:
        ways.append(f"{amount(most)} would fit, and a warning of {ceil(enough)} s would be enough")
    if cloud == "gcp" and fit.window < 120 and enough <= 120:
        ways.append("make the VM with --preemption-notice-duration=120s, and pass --window 120")
    if most > 0:
        machines = -(-fit.nbytes // max(1, most))
        if machines > 1:
            ways.append(f"shard it over {machines} machines (FSDP), each with a link of its own")
    if not rounds and fit.nbytes * _ROUNDED <= most < fit.nbytes:
        ways.append("--lossy-moments rounds the optimizer's moments: that fits")
    if fit.nbytes / _WEIGHTS <= most < fit.nbytes:
        ways.append("as it is, the weights alone are saved in time")
    if not fit.fits:
        ways.append("what a notice cannot save, background checkpoints have: --every")
    return ways or ["a shorter state, or a longer warning"]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
