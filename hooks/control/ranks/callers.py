"""The order in which this rank sends events to the other ranks, on threads made before any notice.

A call waits for the job's store, so the thread that asks for it does not make it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ....providers.clock import Clock
from ...ipc.threads import TaskHandle, ThreadPool

log = logging.getLogger("spotguard")

#: Threads that `begin` makes: one call may wait for a silent store while the next one is given up.
_AHEAD = 2


class CallerPool:
    """A pool of threads that make calls in the order given. `begin` makes the threads, `close` ends them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = ThreadPool("spotguard-call", _AHEAD)
        self._lock = threading.Lock()  # guards `_last`
        self._last: TaskHandle | None = None

    def begin(self) -> None:
        self._threads.make()

    def give(self, call: Callable[[], object], until: float) -> None:
        """Have a thread make this call after the ones before it, or at `until`. Returns at once."""
        with self._lock:
            before = self._last

            def run() -> None:
                if before is not None:
                    self._clock.wait(before.done, max(0.0, until - self._clock.monotonic()))
                call()

            try:
                self._last = self._threads.give(run)
            except RuntimeError as error:
                log.debug("this rank cannot make a call to the other ranks: %s", error)

    def close(self) -> None:
        """Have the threads end once they have made all calls given to them. It does not wait for a silent store."""
        self._threads.close()
