"""When a store's token, or other credentials that end, are renewed.

An SDK renews them during the request that needs them, minutes before their end. If the metadata service does not answer then, the
SDK waits or fails although the old ones are still valid: in the middle of the last save (law 8). So each cloud's store renews
ahead, between saves, by the rule here, and keeps valid credentials as long as no newer ones can be had.
"""

from __future__ import annotations

import math
import threading

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
