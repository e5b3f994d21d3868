"""How long a save may go on: a deadline that only moves earlier, and a way to call the whole thing off.

Every loop and every wait of a save asks its `CancelScope`, so a save cannot hang: it ends by commit, by its own
deadline, or because somebody with a better claim (a notice, a withdrawal) abandoned it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from ...providers.clock import Clock
from ...providers.errors import CorruptError, SpotguardError, StoreError


class Abandoned(SpotguardError):
    """The save was called off; the message says why. What it wrote is an orphan without a manifest."""


class CancelScope:
    """One save's right to go on.

    Args:
        clock: the time.
        deadline: monotonic seconds by which the save must have committed; None for no hurry.
        on_change: called when it is called off, and when its deadline moves, to wake whoever waits on its behalf.
    """

    def __init__(
        self, clock: Clock, deadline: float | None = None, on_change: Callable[[], None] | None = None
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reason = ""
        self._called_off = threading.Event()
        #: Events of those who are in `wait`.
        self._waiting: list[threading.Event] = []
        self._parts: list[CancelScope] = []

    def tighten(self, deadline: float) -> None:
        """Move the deadline earlier; a later one changes nothing."""
        with self._lock:
            if self._deadline is not None and self._deadline <= deadline:
                return
            self._deadline = deadline
            self._wake()  # who waits has less time now
            parts = [*self._parts]
        for part in parts:
            part.tighten(deadline)
        self._say()

    def part(self, deadline: float) -> CancelScope:
        """A part of this one, which ends by itself at `deadline`, or when it is called off alone."""
        with self._lock:  # a deadline that moves now reaches the part, one way or the other
            earliest = min(deadline, self.deadline)
            part = CancelScope(self._clock, None if earliest == math.inf else earliest)
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
        """Monotonic seconds."""
        return self._clock.monotonic()

    def left(self) -> float | None:
        """Seconds until the deadline, never below 0; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    def pause(self, seconds: float) -> None:
        """Wait before trying again, no longer than the save may go on. Raises `Abandoned` like `check`."""
        left = self.left()
        self._clock.wait(self._called_off, seconds if left is None else min(seconds, left))
        self.check()

    def wait(self, over: Callable[[], bool], changed: threading.Event) -> None:
        """Wait until `over()`, no longer than the save may go on. Who makes it so sets `changed`, and nobody else
        clears it. Raises `Abandoned` like `check`."""
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
        """Monotonic seconds; infinity without one."""
        return math.inf if self._deadline is None else self._deadline

    def _say(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _wake(self) -> None:
        for changed in self._waiting:
            changed.set()

    def check(self) -> None:
        """Raises `Abandoned` when the save must not go on."""
        if self._reason:
            raise Abandoned(self._reason)
        if self._deadline is not None and self._clock.monotonic() >= self._deadline:
            raise Abandoned("out of time")


# Asking a store until it answers: what only failed for now is asked again, for as long as the save may go on.

#: Tries of an object whose bytes the store says are not the ones that were sent.
_CORRUPT_TRIES = 3
#: Seconds before a put that failed for a while is tried again: doubled each time up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0


def retry(
    scope: CancelScope,
    ask: Callable[[float | None], object],
    hear: Callable[[StoreError], None] = lambda error: None,
) -> float:
    """Ask a store, again and again while it only fails for now and the save may go on. Returns the seconds that the try took
    that went well.

    Args:
        ask: called with the seconds that are left.
        hear: called with each failure for now.
    """
    pause, tries = _RETRY_FIRST, _CORRUPT_TRIES
    scope.check()
    while True:
        began = scope.now()
        try:
            ask(scope.left())
            return scope.now() - began
        except StoreError as error:
            tries -= isinstance(error, CorruptError)  # on its way, as far as anybody can tell
            if not (error.transient or (isinstance(error, CorruptError) and tries)):
                raise
            last = error
        hear(last)
        try:
            scope.pause(pause)
        except Abandoned as why:
            raise Abandoned(f"{why}; the store said last: {last}") from last
        pause = min(2 * pause, _RETRY_MOST)
