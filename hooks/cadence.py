"""When the next background checkpoint is due."""

from __future__ import annotations

import math

from ..providers.errors import UsageError

#: "auto": not more often than this, in seconds, and never so often that uploads take more than a tenth of the time.
AUTO_EVERY = 60.0
_AUTO_UPLOAD_SHARE = 0.1


class Cadence:
    """A pure clockwork: told when a save ended and what it cost, says when the next is due.

    The training thread calls `begun` and `is_due`, the saving thread `saved`, the listener `ask`.

    Args:
        every: "auto", "off", or seconds.

    Raises:
        UsageError: none of these.
    """

    def __init__(self, every: str, now: float) -> None:
        self._auto = every == "auto"
        self.interval = AUTO_EVERY if self._auto else _seconds(every)
        #: Monotonic seconds; infinity when switched off.
        self.due = now + self.interval
        #: The agent wants one at the next boundary. Of its own, or a save that ends just then would take it back.
        self._asked = False

    def is_due(self, now: float) -> bool:
        return self._asked or now >= self.due

    def ask(self, *, going: bool) -> bool:
        """One is wanted now. False where background checkpoints are switched off and that word stands: it gives
        way to a machine that is `going`, and not to a mere warning."""
        if self.interval == math.inf and not going:
            return False
        self._asked = True
        return True

    def saved(self, now: float, seconds: float) -> None:
        """A checkpoint (of any kind) was committed at `now` and took `seconds`."""
        if self._auto:
            self.interval = max(AUTO_EVERY, seconds / _AUTO_UPLOAD_SHARE)
        self.due = now + self.interval

    def begun(self, now: float) -> None:
        """One was asked for: the next is an interval away, also if this one fails."""
        self._asked = False
        self.due = now + self.interval


def _seconds(every: str) -> float:
    if every == "off":
        return math.inf
    try:
        seconds = float(every)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UsageError(f"every={every!r} is not an interval: use seconds above 0 (60), 'auto', or 'off'")
    return seconds
