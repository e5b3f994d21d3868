"""The health log: it logs each change of a source's health at once, and never more than a few lines a minute.

Pure: a health and the time come in, a line goes out. A source that alternates between blind and seeing would write a line
a second for days. A source that stays blind and is logged once would be forgotten (law 4).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import replace

from ...providers.health import STARTING, Health, Sight

#: Seconds between two lines about a source that stays blind, or that keeps changing.
REMIND = 60.0
#: Changes within `REMIND` that are each logged at once. More changes share one line.
MOST = 6

Line = tuple[int, str]  # the level, and the text


class HealthLog:
    """The health log of one source. The source's poller owns it."""

    def __init__(self) -> None:
        self._seen: Health | None = None
        #: Monotonic seconds at which the source began, or ceased, to see. Another reason does not change it.
        self.since = 0.0
        self._said: Health | None = None
        self._said_at = 0.0
        #: The times of the changes within the last `REMIND` seconds.
        self._changes: deque[float] = deque()
        self._blind_for = 0.0
        self._unsteady = False

    def of(self, health: Health, now: float) -> Line | None:
        """Take in the current health, and return the line to log; None if there is none."""
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
            return None  # the source has given no answer yet, good or bad
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
    """Return the part of a health whose change is news. Details of a failure differ from poll to poll and mean the same."""
    return (health.sight, health.reason, health.detail if health.seeing else "")


def words(health: Health) -> str:
    """Return a health as one line, with the advice."""
    if health.seeing:
        return f"seeing; {health.detail}" if health.detail else "seeing"
    line = str(health.sight) if health.sight is Sight.WRONG_SERVER else f"{health.sight} ({health.reason})"
    line += f": {health.detail}" if health.detail else ""
    return f"{line}; {health.advice}" if health.advice else line


# One line for a problem that several sources of one machine have at once.
#
# A cloud has a source for each key, and a firewall blocks all of them: five lines for one problem would hide the next
# problem. The first source polls the key that ends the machine, and its lines are logged at once. Lines of the other
# sources about the whole machine are kept for a moment and logged together. Pure but for its lock: lines and the time come
# in, lines go out.

#: Seconds for which a line waits for others like it.
_MOMENT = 1.0

#: Reasons that hold for all keys of a service if they hold for one. (A missing or unreadable key is news of its own, and so
#: is a poll that hangs.)
_OF_THE_MACHINE = frozenset(
    {
        "unreachable",
        "timeout",
        "unauthorized",
        "forbidden",
        "hop-limit",
        "throttled",
        "server-error",
        "wrong-server",
    }
)


class CommonHealth:
    """The health that the sources of one cloud have in common. Each source has its own polling thread.

    Args:
        first: the name of the source whose lines are never kept back.
    """

    def __init__(self, first: str) -> None:
        self._first = first
        self._lock = threading.Lock()
        self._problems: dict[str, Health] = {}
        #: By problem: its first line, and the sources that have it, each with the time of its report.
        self._kept: dict[Health, tuple[Line, dict[str, float]]] = {}

    def says(self, name: str, health: Health, line: Line | None, now: float) -> Line | None:
        """Take in a source's health and its line, if any. Return the line to log under the source's name now, if any."""
        problem = replace(health, detail="")  # equal advice means the same problem
        with self._lock:
            self._problems[name] = problem
            if line is None or name == self._first or health.reason not in _OF_THE_MACHINE:
                return line
            _, sources = self._kept.setdefault(problem, (line, {}))
            sources.setdefault(name, now)
            return None

    def due(self, now: float) -> list[tuple[str, Line]]:
        """Return the lines that were kept for `_MOMENT`, each with the names of its sources."""
        lines = []
        with self._lock:
            for problem, (line, sources) in list(self._kept.items()):
                if now - min(sources.values()) < _MOMENT:
                    continue
                del self._kept[problem]
                # A source that sees again, or fails in another way, has had a line of its own.
                names = [name for name in sources if self._problems[name] == problem]
                if names:
                    lines.append((", ".join(names), self._together(problem, line)))
        return lines

    def _together(self, problem: Health, line: Line) -> Line:
        """Return the line in full, or a short one that refers to the first source if that has the same problem."""
        level, text = line
        short = words(replace(problem, advice=""))
        begin = next((begin for begin in (short, f"still {short}") if text.startswith(begin)), "")
        if not begin or self._problems.get(self._first) != problem:
            return line  # for instance the line about an unsteady source
        return level, f"{begin}, as {self._first} is"
