"""The threads that send events to the other ranks, started before any notice and kept.

A call waits for the job's store, so the thread that asks for it does not make it. Python 3.12 starts no thread once the
interpreter exits (python/cpython#104690). A notice may come then, so the threads must exist before.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ....providers.clock import Clock

log = logging.getLogger("spotguard")

#: Threads that `begin` starts: one call may wait for a silent store while the next one is given up.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class _Order:
    call: Callable[[], object]
    #: Monotonic seconds until which this call waits for the one before it.
    until: float
    before: threading.Event | None
    done: threading.Event = field(default_factory=threading.Event)


class CallerPool:
    """A pool of threads that make calls in the order given. `begin` starts the threads, `close` ends them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the fields below
        self._threads = 0
        #: Number of orders that no thread has finished.
        self._open = 0
        self._last: threading.Event | None = None
        self._closed = False

    def begin(self) -> None:
        with self._lock:
            while self._threads < _AHEAD and self._start():
                pass

    def give(self, call: Callable[[], object], until: float) -> None:
        """Have a thread make this call after the ones before it, or at `until`. Returns at once."""
        with self._lock:
            order = _Order(call, until, self._last)
            self._last = order.done
            self._open += 1
            if self._open > self._threads:
                self._start()
            self._requests.put(order)
            if self._closed:
                self._requests.put(None)

    def close(self) -> None:
        """Have the threads end once they have made all calls given to them. It does not wait for a silent store."""
        with self._lock:
            count, self._threads, self._closed = self._threads, 0, True
            for _ in range(count):
                self._requests.put(None)

    def _start(self) -> bool:
        """Start a thread; the caller holds the lock. False if none starts: the order then waits for an existing thread."""
        thread = threading.Thread(target=self._run, name="spotguard-call", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.debug("this rank could not start another thread for calls to the other ranks: %s", error)
            return False
        self._threads += 1
        return True

    def _run(self) -> None:
        while (order := self._requests.get()) is not None:
            if order.before is not None:
                self._clock.wait(order.before, max(0.0, order.until - self._clock.monotonic()))
            try:
                order.call()
            except Exception:  # a bug of spotguard must not keep later events from the other ranks
                log.exception("internal error; please report it [SG704]")
            order.done.set()
            with self._lock:
                self._open -= 1
            del order  # releases the notice while the thread waits for the next order
