"""Clocks, monotonic and wall: pure code gets `now`, threads hold a `Clock`, and only `SystemClock` asks the machine.

*Monotonic* seconds order events and measure the time that remains. They mean nothing on another machine.
*Wall* seconds (Unix, UTC) are what clouds and people write. They are untrusted (NTP steps, a clock 60 s off).
`monotonic_deadline` therefore converts wall seconds once, on receipt; afterwards they are for display only.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: A week in seconds: nobody means to wait longer, and the system's own waits overflow far above it.
WEEK = 7 * 24 * 3600


class Clock(Protocol):
    """Everything that a thread may ask about time."""

    def monotonic(self) -> float:
        """Return seconds that only increase, on one axis for all processes of this machine."""
        ...

    def time(self) -> float:
        """Return wall seconds since the Unix epoch, for parsing and for display, never for a decision."""
        ...

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Block until `event` is set or `timeout` seconds have passed; return whether `event` is set."""
        ...


class SystemClock:
    """The machine's own clock.

    CLOCK_MONOTONIC is one axis for all processes since boot. An instant taken in the agent can therefore be compared
    with one taken in the training process.
    """

    monotonic = staticmethod(time.monotonic)  # each boundary of a training calls it five times

    def time(self) -> float:
        return time.time()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(max(0.0, timeout))


def monotonic_deadline(wall: float, clock: Clock, window: float) -> float:
    """Return the monotonic instant of a cloud's wall-clock deadline, clamped to [now, now + window].

    The clamp makes a wrong clock harmless. Without it, a VM whose clock is 60 s behind would count on a minute that
    it does not have. A VM whose clock is 60 s ahead would give up a window that it has.

    Args:
        wall: Unix seconds, as parsed from the cloud's answer.
        clock: the source of both times.
        window: the nominal warning of this kind of notice, in seconds (AWS: 120).
    """
    now = clock.monotonic()
    return now + min(max(wall - clock.time(), 0.0), window)
