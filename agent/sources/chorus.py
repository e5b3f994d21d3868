"""What several sources of one machine say at once, in one line.

A cloud has a source for each key, and a firewall keeps all of them out: five lines for one thing hide the next. The
first source asks for what ends the machine, and speaks for itself, at once. What the others say of the whole machine is
kept for a moment and said together. Pure but for its lock: what is said and the time come in, lines go out.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from ...providers.health import Health
from .health_log import Line, words

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


class Chorus:
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
