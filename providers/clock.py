"""Time is handed in: pure code gets `now`, threads hold a `Clock`, and only `SystemClock` asks the machine.

Two times exist. *Monotonic* seconds order events and measure what is left; they mean nothing on another
machine. *Wall* seconds (Unix, UTC) are what clouds and people write; they are untrusted (NTP steps, a clock
60 s off), so they become monotonic once, on receipt, by `monotonic_deadline`, and are kept only for display.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

#: A week in seconds: nobody means to wait longer, and the system's own waits overflow far above it.
WEEK = 7 * 24 * 3600


class Clock(Protocol):
    """The whole of time, as threads see it."""

    def monotonic(self) -> float:
        """Seconds that only go forward, on one axis for all processes of this machine."""
        ...

    def time(self) -> float:
        """Wall seconds since the Unix epoch. For parsing and for display, never for deciding."""
        ...

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Block until `event` is set or `timeout` seconds went by; returns whether it is set."""
        ...


class SystemClock:
    """The machine's own clock. CLOCK_MONOTONIC is one axis for all processes since boot, so an instant taken
    in the agent can be compared with one taken in the training process."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(max(0.0, timeout))


def monotonic_deadline(wall: float, clock: Clock, window: float) -> float:
    """The monotonic instant of a cloud's wall-clock deadline, clamped to [now, now + window].

    The clamp is what makes a wrong clock harmless: a VM 60 s behind would otherwise believe it has a minute
    that it has not, one 60 s ahead would give up a window it has.

    Args:
        wall: Unix seconds, as parsed from the cloud's answer.
        clock: where both times come from.
        window: the nominal warning of this kind of notice, in seconds (AWS: 120).
    """
    now = clock.monotonic()
    return now + min(max(wall - clock.time(), 0.0), window)
