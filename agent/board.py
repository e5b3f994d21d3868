"""What the sources show now: their health and the notices that stand, for `status` and for watching agents.

Owned by the loop's thread. The machine decides; this only remembers and passes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..hooks import protocol
from ..hooks.protocol import Message
from ..providers.notice import Notice
from .events import HealthChanged, NoticeGone, NoticeSeen


class Board:
    def __init__(self) -> None:
        self._health: dict[str, HealthChanged] = {}
        self._standing: dict[str, Notice] = {}
        self._watchers: set[int] = set()

    def note(
        self, event: NoticeSeen | NoticeGone | HealthChanged, now: float
    ) -> Iterator[tuple[int, Message]]:
        """Remember it, and give what each watching agent is to be told of it."""
        message: Message | None
        if isinstance(event, NoticeSeen):
            self._standing[event.notice.id] = event.notice
            message = _seen(event.notice, now)
        elif isinstance(event, NoticeGone):
            known = self._standing.pop(event.id, None)
            message = None if known is None else protocol.NoticeGone(event.id)
        else:
            self._health[event.source] = event
            message = _health(event)
        if message is not None:
            for watcher in sorted(self._watchers):
                yield watcher, message

    def joined(self, watcher: int, now: float) -> Iterator[tuple[int, Message]]:
        """A watching agent came: everything that stands now."""
        self._watchers.add(watcher)
        for event in self._health.values():
            yield watcher, _health(event)
        for notice in self._standing.values():
            yield watcher, _seen(notice, now)

    def left(self, session: int) -> None:
        self._watchers.discard(session)

    def status(self, now: float) -> list[dict[str, Any]]:
        return [
            {
                "name": event.source,
                "sight": str(event.health.sight),
                "reason": event.health.reason,
                "detail": event.health.detail,
                "advice": event.health.advice,
                "for_seconds": round(now - event.since, 1),
            }
            for event in self._health.values()
        ]


def _seen(notice: Notice, now: float) -> protocol.NoticeSeen:
    left = max(0.0, notice.deadline - now)
    return protocol.NoticeSeen(notice.id, str(notice.kind), notice.source, left, notice.window, notice.detail)


def _health(event: HealthChanged) -> protocol.HealthSeen:
    h = event.health
    return protocol.HealthSeen(event.source, str(h.sight), h.reason, h.detail, h.advice)
