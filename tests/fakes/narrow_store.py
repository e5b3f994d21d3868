"""A fake store behind a link whose rate a test says, second by second: bytes take a manual clock's time, and no real one.

So that virtual time does not run away from the threads that live in it, no byte of an object leaves while the thread that
saves has something to do: it has to wait, and for nobody else than for bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from spotguard.providers.errors import UnavailableError
from spotguard.providers.stores.base import Sent
from tests.fakes.clock import ManualClock
from tests.fakes.store import FakeStore

#: Bytes that leave at once.
PIECE = 16 * 2**10
#: Real seconds between two looks at whether all others wait. No test's outcome depends on the figure.
_LOOK = 0.0005


class WatchedClock(ManualClock):
    """It knows whether somebody waits, and whether for something that has not come."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self._ends: dict[int, tuple[threading.Event, float]] = {}

    def wait(self, event: threading.Event, timeout: float) -> bool:
        me = threading.get_ident()
        self._ends[me] = event, self.monotonic() + timeout
        try:
            return super().wait(event, timeout)
        finally:
            del self._ends[me]

    def waits(self, thread: int | None) -> bool:
        """Whether the thread with this identifier waits."""
        return thread in self._ends

    def all_wait(self) -> bool:
        """Whether somebody waits, and nobody is about to go on."""
        waits = list(self._ends.values())
        return bool(waits) and not any(event.is_set() or self.monotonic() >= end for event, end in waits)

    def waiting(self) -> set[int]:
        """The threads that wait."""
        return set(self._ends)


class NarrowStore(FakeStore):
    """One put at a time, an object is there when all of it is, and every request takes a moment too.

    Args:
        clock: is moved on by what is put.
        rate: bytes a second at a time. 0 stands still: a tenth of a second goes by, and it is asked again.
        latency: seconds of each request.
    """

    def __init__(self, clock: WatchedClock, rate: Callable[[float], float], latency: float = 0.02) -> None:
        super().__init__()
        self.parallel = 1
        self.clock = clock
        self.rate = rate
        self.latency = latency
        #: Called before each piece: its key, and how much of it is gone.
        self.at: Callable[[str, int], None] = lambda key, gone: None
        #: Whether nobody else is about to put something.
        self.quiet: Callable[[], bool] = lambda: True
        #: The clock's time at which each key was there.
        self.times: dict[str, float] = {}
        self._never = threading.Event()

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        until = None if timeout is None else self.clock.monotonic() + timeout
        self._pass(self.latency, sent)
        gone = 0
        while gone < len(data):
            self.at(key, gone)
            if until is not None and self.clock.monotonic() >= until:
                raise UnavailableError(f"put {key}: out of time")
            rate = self.rate(self.clock.monotonic())
            count = min(PIECE, len(data) - gone) if rate else 0
            self._pass(count / rate if rate else 0.1, sent)
            gone += count
            if sent is not None:
                sent(count)
        if until is not None and self.clock.monotonic() >= until:
            raise UnavailableError(f"put {key}: out of time")
        super().put(key, data, timeout=timeout, crc32=crc32)
        self.times[key] = self.clock.monotonic()

    def _pass(self, seconds: float, sent: Sent | None) -> None:
        """The clock goes on; for an object, when all others wait."""
        while sent is not None and not (self._still() and not self._never.wait(_LOOK) and self._still()):
            sent(0)  # whoever is not wanted any more is told so
            self._never.wait(_LOOK)
        self.clock.advance(seconds)

    def wait_quiet(self, reached: Callable[[], bool]) -> None:
        """Until this is so, and all others wait."""
        while not (reached() and self._still() and not self._never.wait(_LOOK) and self._still()):
            self._never.wait(_LOOK)

    def _still(self) -> bool:
        return self.quiet() and self.clock.all_wait()
