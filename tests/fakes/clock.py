"""Clocks of tests: one that only the test moves, one that never waits, and one that waits for answers alone."""

from __future__ import annotations

import threading
import time

#: Real seconds between two looks of a waiting thread at the event and at the clock. An Event tells nobody but
#: its own waiters that it was set, so the fake has to look; no test's outcome depends on the figure.
_LOOK = 0.001


class ManualClock:
    """A `Clock` that stands still until `advance`. Any number of threads may wait on it.

    Args:
        now: monotonic seconds to begin with.
        wall: Unix seconds to begin with: 2026-11-20T10:00:00Z unless said.
    """

    def __init__(self, now: float = 1000.0, wall: float = 1795168800.0) -> None:
        self._now = now
        self._wall = wall
        self._waiting = 0
        self._change = threading.Condition()

    def monotonic(self) -> float:
        with self._change:
            return self._now

    def time(self) -> float:
        with self._change:
            return self._wall

    def wait(self, event: threading.Event, timeout: float) -> bool:
        with self._change:
            end = self._now + max(0.0, timeout)
            self._waiting += 1
            self._change.notify_all()
        try:
            while self.monotonic() < end and not event.wait(_LOOK):
                pass
        finally:
            with self._change:
                self._waiting -= 1
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move both times on, and wake whoever waited for no longer than that."""
        assert seconds >= 0, "monotonic time never goes back: move the wall clock with step_wall"
        with self._change:
            self._now += seconds
            self._wall += seconds
            self._change.notify_all()

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock on or back, as NTP does."""
        with self._change:
            self._wall += seconds

    def wait_for_waiters(self, count: int = 1, timeout: float = 100.0) -> bool:
        """Block until so many threads wait on this clock; False when `timeout` real seconds went by first."""
        with self._change:
            return self._change.wait_for(lambda: self._waiting >= count, timeout)


class Impatient:
    """A `Clock` on which every wait is over at once, and took its time all the same."""

    def __init__(self) -> None:
        self.now = 0.0
        #: The seconds of each wait, in order.
        self.waits: list[float] = []
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wait(self, event: threading.Event, timeout: float) -> bool:
        with self._lock:
            self.waits.append(round(timeout, 6))
            self.now += timeout
        return event.is_set()


class Hurried:
    """A clock on which nobody pauses for long, and seconds go by all the same. Who waits for an answer waits for it.

    Args:
        look: real seconds of a pause, where another rank has to get on meanwhile.
    """

    def __init__(self, look: float = 0.0) -> None:
        self.now = 0.0
        self._look = look

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wait(self, event: threading.Event, timeout: float) -> bool:
        if timeout > 1.0:  # no pause is longer
            return event.wait(100.0)
        self.now += timeout
        return event.wait(self._look)


class Quick:
    """The machine's clock, fifty times as fast: seconds of patience pass in a moment, and threads still take turns."""

    def monotonic(self) -> float:
        return 50.0 * time.monotonic()

    def time(self) -> float:
        return self.monotonic()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(min(timeout / 50.0, threading.TIMEOUT_MAX))
