"""Whether a look is overdue: a source whose look does not come to its end sees nothing, and says nothing of it either.

Its timeouts are the source's own, and hold where they can: a read from a file server that is gone is held by the
kernel, for hours. So somebody else counts (law 4). Pure: what has happened and the time come in, a health goes out.
"""

from __future__ import annotations

from ...providers.health import Health, blind

#: Seconds by which a look may be late: a machine at its limits is slow, and not blind.
GRACE = 5.0
#: Seconds from one count to the next.
EVERY = 2.0

_ADVICE = (
    "what it looks at does not answer: of a file, see whether its file system does (df), or name one on a local disk; "
    "else start spotguard again, and report it"
)


class Looks:
    """Of one source: when the last look came to its end, and when the next one has to.

    Args:
        longest: seconds that a look may take, by the source's own timeouts.
        now: the first look begins.
    """

    def __init__(self, longest: float, now: float) -> None:
        self._longest = longest
        self._ended_at = now
        self._due = now + longest + GRACE

    def ended(self, now: float, pause: float) -> None:
        """A look came to its end; the next one begins within `pause` seconds."""
        self._ended_at = now
        self._due = now + pause + self._longest + GRACE

    def problem(self, now: float) -> Health | None:
        """Blindness, where a look is overdue; else None."""
        if now < self._due:
            return None
        words = f"no look for {now - self._ended_at:.0f} s, and one takes {self._longest:g} s at the most"
        return blind("overdue", words, _ADVICE)
