"""The call that switches Scheduled Events on: it may take two minutes, so it has a thread and a connection of its own.

Azure switches the events of a machine on when somebody asks for them, and off when nobody has for 24 hours. What this
call brings is an answer like any other, with the notices that stand in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..http import Failure, MetadataAnswer


class _Call:
    """One request on its way. It cannot be called back: its thread ends with the answer or at the timeout, and holds
    up no exit (a daemon)."""

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
    """One such call at a time. For the thread that looks.

    Args:
        ask: sends the request; None where it was not sent.
    """

    def __init__(self, ask: Callable[[], MetadataAnswer | Failure | None]) -> None:
        self._ask = ask
        self._call: _Call | None = None

    def begin(self) -> bool:
        """Ask, unless a call is under way. Whether this is a new one."""
        if self._call is not None:
            return False
        self._call = _Call(self._ask)
        return True

    def take(self, wait: float) -> MetadataAnswer | Failure | None:
        """The answer, once; None where there is none after `wait` seconds.

        Real seconds, whatever Clock the caller holds: so are the network's.
        """
        if self._call is None or not self._call.done.wait(wait):
            return None
        call, self._call = self._call, None
        return call.answer

    def forget(self) -> None:
        """The events are on: an answer that comes from here later would be an old one."""
        self._call = None
