"""The time budget of a save: does the save fit into the warning? `doctor`, `drill` and the metrics share this arithmetic.

Pure. At a notice, the hook's own budget decides; this module predicts that decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

#: Seconds of warning that a cloud gives by default: AWS's spot interruption notice, GCP without
#: `--preemption-notice-duration`, Azure's Preempt event as documented (docs/how-to/clouds).
USUAL_WINDOWS = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
#: Seconds that a SIGTERM leaves, the only notice without a cloud. Launchers kill after 30 s (Kubernetes; Docker's 10 is set by
#: hand), some after 25.
SIGTERM_WINDOW = 25.0


def expected_window(cloud: str, configured: float | None) -> float:
    """Return the seconds of warning to count on: the user's `--window`, else the cloud's usual window, or a SIGTERM's.

    Args:
        cloud: "aws", "gcp", "azure" or another name.
        configured: seconds of `--window`; None if it is not set.
    """
    usual = USUAL_WINDOWS.get(cloud, SIGTERM_WINDOW)
    if configured is None:
        return usual
    # `--window` shortens the window of a notice. Only GCP's notice has no window, so `--window` replaces it.
    return configured if cloud not in ("aws", "azure") else min(configured, usual)


def reserve_of(left: float, configured: float | None) -> float:
    """Return the seconds to reserve of `left`, to end in order: for TERM, KILL and the outcome.

    The reserve is a tenth of the time left. A tenth of the cloud's usual warning would waste 12 s of a notice with 29 s left.
    It is never more than half, so that a short `--window` leaves time to save.

    Args:
        left: seconds that are left.
        configured: seconds of `--reserve`; None if it is not set.
    """
    return min(max(3.0, left / 10) if configured is None else configured, left / 2)


def window_for(seconds: float, configured: float | None) -> float:
    """Return the shortest warning that leaves `seconds` beside its own reserve.

    This is the inverse of `reserve_of`, since the reserve grows with the warning.

    Args:
        seconds: seconds for the save.
        configured: seconds of `--reserve`; None if it is not set.
    """
    beside = max(seconds + 3.0, seconds / 0.9) if configured is None else seconds + configured
    return min(beside, 2 * seconds)


@dataclass(frozen=True, slots=True)
class Fit:
    """The comparison of a save's bytes, at a link's rate, with the seconds of a warning."""

    nbytes: int
    #: Bytes per second of all processes of this machine together; None: not known yet.
    rate: float | None
    #: Seconds of warning.
    window: float
    #: Seconds of the warning that are kept back.
    reserve: float
    #: Seconds that a save takes besides its bytes.
    commit: float = 0.0
    #: Seconds of `--reserve`, which would apply to another window too; None: the reserve is in proportion to the window.
    configured: float | None = None

    @property
    def budget(self) -> float:
        """Seconds for the save."""
        return self.window - self.reserve

    @property
    def seconds(self) -> float | None:
        """Seconds that the save takes; None: not known."""
        return None if not self.rate else self.nbytes / self.rate + self.commit

    @property
    def slack(self) -> float | None:
        """Seconds to spare, below 0 if the save does not fit; None: not known."""
        return None if self.seconds is None else self.budget - self.seconds

    @property
    def fits(self) -> bool | None:
        return None if self.slack is None else self.slack >= 0

    @property
    def needed(self) -> float:
        """Bytes per second that would be just enough; infinite if the commit alone takes too long."""
        left = self.budget - self.commit
        return self.nbytes / left if left > 0 else inf

    @property
    def most(self) -> int | None:
        """Bytes that would just fit; None: not known."""
        return None if not self.rate else max(0, int(self.rate * (self.budget - self.commit)))

    @property
    def enough(self) -> float | None:
        """Seconds of warning that would be just enough, its own reserve included; None: not known."""
        return None if self.seconds is None else window_for(self.seconds, self.configured)

    def verdict(self) -> str:
        """Return one line with the numbers that decide.

        For example "84.0 GiB in 95.0 s needs 0.88 GiB/s; measured 1.10: fits with 18.6 s to spare".
        """
        if self.slack is None:
            return f"{self.numbers()}; how fast the link is is not known yet"
        if self.slack >= 0:
            return f"{self.numbers()}: fits with {self.slack:.1f} s to spare"
        return f"{self.numbers()}: does not fit, {-self.slack:.1f} s are missing"

    def numbers(self) -> str:
        """Return the numbers of the verdict, without the conclusion."""
        size, unit = _unit(max(self.needed if self.needed < inf else 0.0, self.rate or 0.0))
        amount, of = _unit(self.nbytes, least=1.0)
        least = "less than 0.01" if self.needed < 0.005 * size else f"{self.needed / size:.2f}"
        need = f"needs {least} {unit}/s" if self.needed < inf else "cannot be committed"
        asked = f"{self.nbytes / amount:.1f} {of} in {self.budget:.1f} s {need}"
        return asked if not self.rate else f"{asked}; measured {self.rate / size:.2f}"


def _unit(value: float, least: float = 0.1) -> tuple[int, str]:
    """Return the largest unit of which `value` is at least `least`.

    The default is a tenth, for rates: a reader compares 0.88 GiB/s with 1.10.
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if least * 1024**power <= value:
            return 1024**power, unit
    return 1, "B"
