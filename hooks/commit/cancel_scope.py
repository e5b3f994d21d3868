"""The cancel scope of a save.

A cancel scope is a deadline that only moves earlier, and a way to call the save off. Every loop and every wait of a save checks
its `CancelScope`, so a save cannot hang. It ends by commit, by its own deadline, or because something with a better claim (a
notice, a withdrawal) abandoned it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import SpotguardError


class Abandoned(SpotguardError):
    """The save was called off; the message says why. Its objects are orphans without a manifest."""


def with_last(why: Abandoned, last_error: str) -> Abandoned:
    """Return the end of a save with the last error of its store; "" for none."""
    return Abandoned(f"{why}; the last error of the store: {last_error}") if last_error else why


class CancelScope:
    """One save's right to go on.

    Args:
        clock: the time.
        deadline: monotonic seconds by which the save must have committed; None for no hurry.
        on_change: called when the save is called off, and when its deadline moves, to wake a thread that waits for it.
    """

    def __init__(
        self, clock: Clock, deadline: float | None = None, on_change: Callable[[], None] | None = None
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reason = ""
        #: The save itself has a deadline. The limit of a part is none.
        self.hurried = deadline is not None
        #: The identity of the save, which all its parts share.
        self.save = object()
        self._called_off = threading.Event()
        #: Events of the threads that are in `wait`.
        self._waiting: list[threading.Event] = []
        self._parts: list[CancelScope] = []

    def tighten(self, deadline: float) -> None:
        """Move the deadline earlier. A later deadline changes nothing."""
        self.hurried = True
        with self._lock:
            if self._deadline is not None and self._deadline <= deadline:
                return
            self._deadline = deadline
            self._wake()  # threads in `wait` have less time now
            parts = [*self._parts]
        for part in parts:
            part.tighten(deadline)
        self._say()

    def part(self, deadline: float) -> CancelScope:
        """Return a part of this scope, which ends at `deadline` too, and can be called off alone."""
        with self._lock:  # so that a deadline that moves now also reaches the part
            earliest = min(deadline, self.deadline)
            part = CancelScope(self._clock, None if earliest == math.inf else earliest)
            part.hurried, part.save = self.hurried, self.save
            self._parts.append(part)
            reason = self._reason
        if reason:
            part.abandon(reason)
        return part

    def abandon(self, reason: str) -> None:
        with self._lock:
            if self._reason:
                return
            self._reason = reason
            self._wake()
            parts = [*self._parts]
        for part in parts:
            part.abandon(reason)
        self._called_off.set()
        self._say()

    @property
    def abandoned(self) -> bool:
        return bool(self._reason)

    def now(self) -> float:
        """Return the time in monotonic seconds."""
        return self._clock.monotonic()

    def left(self) -> float | None:
        """Return the seconds until the deadline, never below 0; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    def pause(self, seconds: float) -> None:
        """Wait before a retry, no longer than the save may go on.

        Raises:
            Abandoned: the save must not go on.
        """
        left = self.left()
        self._clock.wait(self._called_off, seconds if left is None else min(seconds, left))
        self.check()

    def wait(self, over: Callable[[], bool], changed: threading.Event) -> None:
        """Wait until `over()`, no longer than the save may go on.

        Args:
            changed: set by the thread that makes `over()` true. Only this method may clear it.

        Raises:
            Abandoned: the save must not go on.
        """
        with self._lock:
            self._waiting.append(changed)
        try:
            while not over():
                self.check()
                left = self.left()
                self._clock.wait(changed, threading.TIMEOUT_MAX if left is None else left)
                changed.clear()
        finally:
            with self._lock:
                self._waiting.remove(changed)

    @property
    def deadline(self) -> float:
        """Monotonic seconds; infinity without a deadline."""
        return math.inf if self._deadline is None else self._deadline

    def _say(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _wake(self) -> None:
        for changed in self._waiting:
            changed.set()

    def check(self) -> None:
        """Check that the save may go on.

        Raises:
            Abandoned: it was called off, or its deadline has passed.
        """
        if self._reason:
            raise Abandoned(self._reason)
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            raise Abandoned("out of time")
