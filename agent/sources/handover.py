"""When another one looks in our place: what the first has told, the second has to show again, or it is over.

A service agent tells of a reboot in three hours and dies; the reboot is cancelled; whoever looks next sees nothing, and
withdraws nothing, for it has never shown it. What is owed like that is gone once every source of the one who tells now
has seen for a full beat and does not show it. Only what ends the machine later: what ends it now is left to its
deadline, and what its source never withdraws is never called off. Pure: what was said and the time come in.
"""

from __future__ import annotations

from collections.abc import Collection

from ...providers.notice import Notice, Severity
from ..events import Event, HealthChanged, NoticeGone, NoticeSeen


class Handover:
    """Of one run. Takes in everything that any of those says who look for it."""

    def __init__(self) -> None:
        #: What ends the machine later, told by anybody, and not taken back.
        self._standing: dict[str, Notice] = {}
        #: Of those, what the one who tells now has not shown yet.
        self._owed: set[str] = set()
        #: What the one who tells now says of each source, and since when that one tells.
        self._sight: dict[str, HealthChanged] = {}
        self._since = 0.0

    def take(self, event: Event) -> None:
        """The one who tells now said this."""
        if isinstance(event, HealthChanged):
            self._sight[event.source] = event
        elif isinstance(event, NoticeSeen):
            self._drop(event.notice.id)
            if event.notice.severity is Severity.LATER:
                self._standing[event.notice.id] = event.notice
        elif isinstance(event, NoticeGone):
            self._drop(event.id)

    def changes(self, now: float) -> None:
        """Another one tells from now on."""
        self._owed = set(self._standing)
        self._sight, self._since = {}, now

    def over(self, now: float, *, sources: int, withdrawing: Collection[str], beat: float) -> list[str]:
        """The ids of what is over now, each once.

        Args:
            sources: how many of them the one who tells now has.
            withdrawing: names of the sources whose silence takes a notice back.
            beat: seconds that each has to have seen for.
        """
        if not self._owed or not 0 < sources <= len(self._sight):
            return []
        if not all(
            one.health.seeing and now - max(one.since, self._since) >= beat for one in self._sight.values()
        ):
            return []
        gone = [
            id for id in self._owed if self._source(id) in self._sight and self._source(id) in withdrawing
        ]
        self._owed.clear()  # what is left cannot be known by this one
        for id in gone:
            self._drop(id)
        return sorted(gone)

    def _source(self, id: str) -> str:
        return self._standing[id].source

    def _drop(self, id: str) -> None:
        self._standing.pop(id, None)
        self._owed.discard(id)
