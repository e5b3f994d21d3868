"""What the log says of a source's sight: a change in the moment it comes, and never more than a few lines a minute.

Pure: what is seen and the time come in, a line goes out. A source that is blind now and seeing then, by turns, would
write a line a second for days; one that stays blind, and is mentioned once, would be forgotten (law 4).
"""

from __future__ import annotations

import logging
from collections import deque

from ...providers.health import STARTING, Health, Sight

#: Seconds between two lines about a source that stays blind, or changes without end.
REMIND = 60.0
#: So many changes within `REMIND` are each said when they come; of more than these there is one line for all.
MOST = 6

Line = tuple[int, str]  # the level, and the words


class HealthLog:
    """Of one source. Owned by its watcher."""

    def __init__(self) -> None:
        self._seen: Health | None = None
        #: Since when the source sees, or does not, whatever the reason.
        self.since = 0.0
        self._said: Health | None = None
        self._said_at = 0.0
        #: When the newest changes came, within `REMIND`.
        self._changes: deque[float] = deque()
        self._blind_for = 0.0
        self._unsteady = False

    def of(self, health: Health, now: float) -> Line | None:
        """Take in what is seen now; the line that the log is owed, None where it is owed none."""
        before, self._seen = self._seen, health
        if before is None or before.sight is not health.sight:
            if before is not None and not before.seeing:
                self._blind_for = now - self.since
            self.since = now
        if before is not None and _essence(before) != _essence(health):
            self._changes.append(now)
        while self._changes and now - self._changes[0] >= REMIND:
            self._changes.popleft()
        return self._owed(health, now)

    def _owed(self, health: Health, now: float) -> Line | None:
        if self._said is None and health == STARTING:
            return None  # nothing is wrong yet, and nothing is known
        news = self._said is None or _essence(self._said) != _essence(health)
        waited = now - self._said_at >= REMIND
        if len(self._changes) > MOST:
            if not waited:
                return None
            self._unsteady = True
            line = f"unsteady, {len(self._changes)} changes in {REMIND:.0f} s; now {words(health)}"
            return self._say(health, now, logging.WARNING, line)
        if self._unsteady:
            self._unsteady = False
            line = f"steady again: {words(health)}"
            return self._say(health, now, logging.INFO if health.seeing else logging.WARNING, line)
        if news:
            again = health.seeing and self._said is not None and not self._said.seeing
            line = words(health) + (f" (again, after {self._blind_for:.0f} s)" if again else "")
            calm = health.reason == "starting" or (health.seeing and not health.detail)
            return self._say(health, now, logging.INFO if calm else logging.WARNING, line)
        if not health.seeing and waited:
            line = f"still {words(health)} after {now - self.since:.0f} s"
            return self._say(health, now, logging.WARNING, line)
        return None

    def _say(self, health: Health, now: float, level: int, line: str) -> Line:
        self._said, self._said_at = health, now
        return level, line


def _essence(health: Health) -> tuple[str, ...]:
    """What of it is news. The details of a failure differ from one look to the next and mean the same."""
    return (health.sight, health.reason, health.detail if health.seeing else "")


def words(health: Health) -> str:
    """A health in one line, with what to do."""
    if health.seeing:
        return f"seeing; {health.detail}" if health.detail else "seeing"
    line = str(health.sight) if health.sight is Sight.WRONG_SERVER else f"{health.sight} ({health.reason})"
    line += f": {health.detail}" if health.detail else ""
    return f"{line}; {health.advice}" if health.advice else line
