"""How often each source was looked at, and how often in vain, and why: counted where it happens, read by whoever likes.

A failed look is no event: there is one every two seconds for as long as a source is blind. So the watchers' threads
count here, and nobody waits for anybody. Each number has one writer (a source has one watcher at a time), and a copy
of the whole is one step of the interpreter's.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...providers.health import Health


class PollCount:
    """Of one agent, from its start on. Numbers only grow, also where one watcher follows another."""

    def __init__(self) -> None:
        #: By source, reason and HTTP status; "" and "": it saw.
        self._ended: dict[tuple[str, str, str], int] = {}

    def ended(self, source: str, health: Health) -> None:
        """A look came to its end. On the thread that looked."""
        failed = not health.seeing
        key = (source, health.reason if failed else "", str(health.code) if failed and health.code else "")
        self._ended[key] = self._ended.get(key, 0) + 1

    @property
    def totals(self) -> Mapping[tuple[str, str, str], int]:
        """As they stand: looks by source, reason and HTTP status, "" and "" for those that saw. Any thread."""
        return self._ended.copy()
