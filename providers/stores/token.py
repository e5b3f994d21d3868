"""When a store's token, or other credentials that end, are renewed.

An SDK renews them during the request that needs them, minutes before their end. If the metadata service does not answer then, the
SDK waits or fails although the old ones are still valid: in the middle of the last save (law 8). So each cloud's store renews
ahead, between saves, by the rule here, and keeps valid credentials as long as no newer ones can be had.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from ..clock import Clock

#: Seconds before their end at which credentials are renewed.
AHEAD = 15 * 60.0
#: Seconds until the next attempt: metadata services return the same token until five minutes before its end, and each thread of
#: a save would wait for a lost identity every few seconds.
AGAIN = 60.0


class RenewalTurn:
    """Gives one thread at a time the turn to renew ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._not_before = -math.inf
        self._failed = False

    def take(self, left: float) -> bool:
        """Return whether the caller renews now.

        Args:
            left: seconds until the credentials end.
        """
        with self._lock:
            now = self._clock.monotonic()
            if left >= AHEAD or now < self._not_before:
                return False
            self._not_before = now + AGAIN
            return True

    def fails(self) -> bool:
        """Note that the renewal failed; return whether that is news, since a log needs one line for a lost identity."""
        with self._lock:
            before, self._failed = self._failed, True
            return not before

    def succeeds(self) -> None:
        """Note that there are newer credentials."""
        with self._lock:
            self._failed = False


class SharedAttempt:
    """Lets one thread ask for credentials. Threads that wait for it meanwhile share its outcome, a failure too.

    Otherwise twelve threads of a save would ask a lost identity one after another, each for as long as its client retries.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Attempts that are over.
        self._attempts = 0
        self._error: Exception | None = None

    def make(self, needed: Callable[[], bool], ask: Callable[[], None]) -> None:
        """Ask if that is still needed when this thread's turn comes, and no other thread has failed since the call.

        Raises:
            Exception: what `ask` raised, in this thread or in the one that it waited for.
        """
        before = self._attempts
        if not needed():
            return
        with self._lock:
            if not needed():
                return
            if self._attempts != before and self._error is not None:
                raise self._error
            self._error = None
            try:
                ask()
            except Exception as error:
                self._error = error
                raise
            finally:
                self._attempts += 1
