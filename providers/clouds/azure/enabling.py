"""The call that switches Scheduled Events on. It may take two minutes, so it has a thread and a connection of its own.

Azure switches a machine's events on when a program asks for them, and off after 24 hours without a request. This call's
answer counts like any other, with the notices in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..http import Failure, MetadataAnswer


class _Call:
    """One request in progress.

    It cannot be cancelled. Its thread ends with the answer or at the timeout, and delays no exit (a daemon).
    """

    def __init__(self, ask: Callable[[], MetadataAnswer | Failure | None]) -> None:
        self.done = threading.Event()
        self.answer: MetadataAnswer | Failure | None = None
        self._ask = ask
        threading.Thread(target=self._run, name="spotguard-azure-enabling", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = self._ask()
        finally:
            self.done.set()


class Enabling:
    """At most one call at a time. For the polling thread.

    Args:
        ask: sends the request, and returns None if it was not sent.
    """

    def __init__(self, ask: Callable[[], MetadataAnswer | Failure | None]) -> None:
        self._ask = ask
        self._call: _Call | None = None

    def begin(self) -> bool:
        """Start a call unless one is in progress; return whether this call started one."""
        if self._call is not None:
            return False
        self._call = _Call(self._ask)
        return True

    def take(self, wait: float) -> MetadataAnswer | Failure | None:
        """Return the answer once, or None if there is none after `wait` seconds.

        The seconds are real ones, whichever Clock the caller holds, because the network's are real too.
        """
        if self._call is None or not self._call.done.wait(wait):
            return None
        call, self._call = self._call, None
        return call.answer

    def forget(self) -> None:
        """Drop the call in progress: the events are on, so its answer would be outdated."""
        self._call = None
