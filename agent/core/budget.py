"""Whether a save fits into the warning: the arithmetic that `doctor`, `drill` and the metrics share, before any notice and after one.

Pure. At a notice the hook's own budget decides; this says beforehand what it will come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

#: Seconds of warning that a cloud gives unless somebody chose otherwise: AWS's spot interruption notice, GCP without
#: `--preemption-notice-duration`, Azure's Preempt event at its word (docs/notices-*.md).
USUAL_WINDOWS = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
#: What a SIGTERM leaves, the only notice where no cloud is: launchers kill after 30 s (Kubernetes, Docker's 10 is set by
#: hand), some after 25.
SIGTERM_WINDOW = 25.0


def expected_window(cloud: str, said: float | None) -> float:
    """Seconds of warning to count on: what the user said, else what the cloud is known to give, or a SIGTERM."""
    usual = USUAL_WINDOWS.get(cloud, SIGTERM_WINDOW)
    if said is None:
        return usual
    # `--window` cuts down what a notice says; only GCP's, which says nothing, is taken at the user's word.
    return said if cloud not in ("aws", "azure") else min(said, usual)


def reserve_of(left: float, said: float | None) -> float:
    """Seconds of those that are left that are kept back to end in order: for TERM, KILL and the outcome.

    A tenth, and not of the cloud's usual warning: of a notice that is seen with 29 s left, 12 s would be thrown away. Never
    more than half, so that a short `--window` leaves time to save.
    """
    return min(max(3.0, left / 10) if said is None else said, left / 2)


def window_for(seconds: float, said: float | None) -> float:
    """The shortest warning that leaves so many seconds beside its own reserve: `reserve_of`, which grows with it, solved."""
    beside = max(seconds + 3.0, seconds / 0.9) if said is None else seconds + said
    return min(beside, 2 * seconds)


@dataclass(frozen=True, slots=True)
class Fit:
    """So many bytes, a link, and the seconds that there are."""

    nbytes: int
    #: Bytes a second, all of this machine's processes together; None: not known yet.
    rate: float | None
    #: Seconds: the warning, what of it is kept back, and what a save takes beside its bytes.
    window: float
    reserve: float
    commit: float = 0.0
    #: `--reserve`, which another window would have as well; None: it is in proportion to the window.
    said: float | None = None

    @property
    def budget(self) -> float:
        """Seconds for the save."""
        return self.window - self.reserve

    @property
    def seconds(self) -> float | None:
        """That the save takes; None: not known."""
        return None if not self.rate else self.nbytes / self.rate + self.commit

    @property
    def slack(self) -> float | None:
        """Seconds to spare, below 0 where it does not fit; None: not known."""
        return None if self.seconds is None else self.budget - self.seconds

    @property
    def fits(self) -> bool | None:
        return None if self.slack is None else self.slack >= 0

    @property
    def needed(self) -> float:
        """Bytes a second that would be just enough; infinite where a commit alone takes too long."""
        left = self.budget - self.commit
        return self.nbytes / left if left > 0 else inf

    @property
    def most(self) -> int | None:
        """Bytes that would just fit; None: not known."""
        return None if not self.rate else max(0, int(self.rate * (self.budget - self.commit)))

    @property
    def enough(self) -> float | None:
        """Seconds of warning that would be just enough, with the reserve of such a one; None: not known."""
        return None if self.seconds is None else window_for(self.seconds, self.said)

    def verdict(self) -> str:
        """One line with the numbers that decide: "84.0 GiB in 95.0 s needs 0.88 GiB/s; measured 1.10: fits with 18.6 s
        to spare"."""
        if self.slack is None:
            return f"{self.numbers()}; how fast the link is is not known yet"
        if self.slack >= 0:
            return f"{self.numbers()}: fits with {self.slack:.1f} s to spare"
        return f"{self.numbers()}: does not fit, {-self.slack:.1f} s are missing"

    def numbers(self) -> str:
        """The verdict without what follows from it."""
        size, unit = _unit(max(self.needed if self.needed < inf else 0.0, self.rate or 0.0))
        amount, of = _unit(self.nbytes, least=1.0)
        least = "less than 0.01" if self.needed < 0.005 * size else f"{self.needed / size:.2f}"
        need = f"needs {least} {unit}/s" if self.needed < inf else "cannot be committed"
        asked = f"{self.nbytes / amount:.1f} {of} in {self.budget:.1f} s {need}"
        return asked if not self.rate else f"{asked}; measured {self.rate / size:.2f}"


def _unit(value: float, least: float = 0.1) -> tuple[int, str]:
    """The unit of which `value` has at least so many. (A tenth for rates: 0.88 GiB/s and 1.10 are read side by side.)"""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if least * 1024**power <= value:
            return 1024**power, unit
    return 1, "B"
