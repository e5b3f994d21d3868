"""When the next background checkpoint is due."""

from __future__ import annotations

import math
import threading

from ..providers.errors import UsageError

#: "auto": not more often than this, in seconds, and never so often that uploads take more than a tenth of the time.
AUTO_EVERY = 60.0
_AUTO_UPLOAD_SHARE = 0.1


class Cadence:
    """A pure clockwork: told when a save ended and what it cost, says when the next is due.

    The training thread calls `restored`, `begun` and reads `due`, the saving thread calls `saved`, the listener `ask`.

    Args:
        every: "auto", "off", or seconds.

    Raises:
        UsageError: none of these.
    """

    def __init__(self, every: str, now: float) -> None:
        self._auto = every == "auto"
        self.interval = AUTO_EVERY if self._auto else _seconds(every)
        #: Monotonic seconds, read at every boundary; infinity when switched off.
        self.due = now + self.interval
        self._asked = False
        self._lock = (
            threading.Lock()
        )  # guards both: a save that ends just then must not take back what is asked for

    def ask(self, *, going: bool) -> bool:
        """One is wanted now. False where background checkpoints are switched off and that word stands: it gives
        way to a machine that is `going`, and not to a mere warning."""
        if self.interval == math.inf and not going:
            return False
        with self._lock:
            self._asked, self.due = True, -math.inf
        return True

    def restored(self, now: float) -> None:
        """Training begins, or begins again: counted from here. What was asked for before is still wanted."""
        with self._lock:
            if not self._asked:
                self.due = now + self.interval

    def saved(self, now: float, seconds: float) -> None:
        """A checkpoint (of any kind) was committed at `now` and took `seconds`."""
        if self._auto:
            self.interval = max(AUTO_EVERY, seconds / _AUTO_UPLOAD_SHARE)
        with self._lock:
            if not self._asked:
                self.due = now + self.interval

    def begun(self, now: float) -> None:
        """One was asked for: the next is an interval away, also if this one fails."""
        with self._lock:
            self._asked, self.due = False, now + self.interval


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
