"""What the log says of a source's sight: a change in the moment it comes, and never more than a few lines a minute.

Pure: what is seen and the time come in, a line goes out. A source that is blind now and seeing then, by turns, would
write a line a second for days; one that stays blind, and is mentioned once, would be forgotten (law 4).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import replace

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


# What several sources of one machine say at once, in one line.
#
# A cloud has a source for each key, and a firewall keeps all of them out: five lines for one thing hide the next. The
# first source asks for what ends the machine, and speaks for itself, at once. What the others say of the whole machine is
# kept for a moment and said together. Pure but for its lock: what is said and the time come in, lines go out.

#: Seconds for which a line waits for others like it.
_MOMENT = 1.0

#: What holds for all keys of a service, when it holds for one. (A key that is missing, or cannot be read, is its own
#: news, and so is a look that hangs.)
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
    """Of the sources of one cloud, which are looked through by a thread each.

    Args:
        first: the name of the one that is never kept waiting.
    """

    def __init__(self, first: str) -> None:
        self._first = first
        self._lock = threading.Lock()
        self._problems: dict[str, Health] = {}
        #: By problem: the first line of it, and who said it, since when.
        self._kept: dict[Health, tuple[Line, dict[str, float]]] = {}

    def says(self, name: str, health: Health, line: Line | None, now: float) -> Line | None:
        """A source sees this, and has this to say, or nothing. The line that is to be logged under its name now."""
        problem = replace(health, detail="")  # what to do is the same, so it is
        with self._lock:
            self._problems[name] = problem
            if line is None or name == self._first or health.reason not in _OF_THE_MACHINE:
                return line
            _, who = self._kept.setdefault(problem, (line, {}))
            who.setdefault(name, now)
            return None

    def due(self, now: float) -> list[tuple[str, Line]]:
        """What was kept for long enough: the names, and the line about them."""
        said = []
        with self._lock:
            for problem, (line, who) in list(self._kept.items()):
                if now - min(who.values()) < _MOMENT:
                    continue
                del self._kept[problem]
                # One that sees again, or fails in another way, has said so by itself.
                names = [name for name in who if self._problems[name] == problem]
                if names:
                    said.append((", ".join(names), self._together(problem, line)))
        return said

    def _together(self, problem: Health, line: Line) -> Line:
        """In full, unless the first has said it."""
        level, text = line
        short = words(replace(problem, advice=""))
        begin = next((begin for begin in (short, f"still {short}") if text.startswith(begin)), "")
        if not begin or self._problems.get(self._first) != problem:
            return line  # it may be unsteady: that is another thing
        return level, f"{begin}, as {self._first} is"
