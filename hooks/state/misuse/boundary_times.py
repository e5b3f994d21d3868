"""The time that boundaries take: the copies of a boundary, and the rest of a step between the optimizer and `guard.step()`."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("spotguard")

#: Limits for a boundary's copies, in seconds and as a share of a step. Beyond both, saves wait for the boundary instead.
COSTLY_SECONDS, _COSTLY_SHARE = 0.002, 0.01
#: Limits for the time between the optimizer's step and the boundary, in seconds and as a share of a step. Beyond
#: both, the state warns.
LATE_SECONDS, _LATE_SHARE = 1.0, 0.3


class BoundaryTimes:
    """The boundaries in a row that took too long. The training thread sets a count back as soon as one did not.

    Args:
        save_at_boundaries: has saves wait for the boundary, for the given reason.
    """

    __slots__ = ("_save_at_boundaries", "costly", "late")

    def __init__(self, save_at_boundaries: Callable[[str], None]) -> None:
        self._save_at_boundaries = save_at_boundaries
        #: Boundaries in a row whose copies cost too much.
        self.costly = 0
        #: Boundaries in a row that came long after the optimizer's step.
        self.late = 0

    def copied(self, cost: float, step: float) -> None:
        """Make saves wait for the boundary if copies cost too much at three boundaries in a row.

        The first of the three counts elapsed time. The two after it count this thread's own CPU time.

        Args:
            cost: seconds that this boundary's copies took, `COSTLY_SECONDS` or more.
            step: seconds from the last boundary to the start of this one.
        """
        if cost < _COSTLY_SHARE * (cost + step):
            self.costly = 0
            return
        self.costly += 1
        if self.costly == 3:
            self._save_at_boundaries(f"copying what changes between steps costs {cost * 1e3:.1f} ms a step")

    def came_late(self, dirty: float, step: float) -> None:
        """Warn, at the third such boundary in a row, about a long time between the optimizer's step and `guard.step()`.

        A notice must wait for all of this time.

        Args:
            dirty: seconds from the end of the optimizer's step to this boundary, above `LATE_SECONDS`.
            step: seconds from the last boundary to this one.
        """
        self.late = self.late + 1 if dirty > _LATE_SHARE * step else 0
        if self.late == 3:
            log.warning(
                "%.1f s of each %.1f s step are between optimizer.step() and guard.step(), and a notice "
                "waits for them: call guard.step() right after the optimizer (and scheduler), before "
                "evaluation [SG407]",
                dirty,
                step,
            )
