"""The feed: the current health of the sources and the notices that stand, for `status` and for following agents.

The loop's thread owns the feed. The machine decides; the feed only remembers and passes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...hooks.ipc import protocol
from ...hooks.ipc.protocol import Message
from ...providers.notice import Notice, Severity
from ..core.command import OUTLIVED
from ..events import HealthChanged, NoticeGone, NoticeSeen, SourceGone, WindowTold

#: Seconds between two signs of life. Without them, a stopped or stuck agent would look like one that sees no notice.
BEAT = 5.0


class Feed:
    """The feed of one agent.

    Args:
        sources: how many sources the agent polls.
    """

    def __init__(self, sources: int = 0) -> None:
        self._sources = sources
        self._health: dict[str, HealthChanged] = {}
        self._standing: dict[str, Notice] = {}
        #: The sessions that follow the feed.
        self._followers: set[int] = set()
        self._beaten_at = 0.0
        #: Seconds of warning that the cloud itself reports; 0: it has reported none.
        self.window = 0.0

    def note(
        self, event: NoticeSeen | NoticeGone | HealthChanged | SourceGone | WindowTold, now: float
    ) -> Iterator[tuple[int, Message]]:
        """Remember the event, and yield the message about it for each following agent."""
        message: Message | None
        if isinstance(event, NoticeSeen):
            self._standing[event.notice.id] = event.notice
            message = _seen(event.notice, now) if _stands(event.notice, now) else None
        elif isinstance(event, NoticeGone):
            known = self._standing.pop(event.id, None)
            message = None if known is None else protocol.FeedNoticeGone(event.id)
        elif isinstance(event, SourceGone):  # only in a run that follows a service; nobody follows a run
            self._health.pop(event.source, None)
            message = None
        elif isinstance(event, WindowTold):
            self.window = event.seconds
            message = protocol.Watched(self._sources, self.window)
        else:
            self._health[event.source] = event
            message = _health(event, now)
        if message is not None:
            for follower in sorted(self._followers):
                yield follower, message

    def joined(self, follower: int, now: float) -> Iterator[tuple[int, Message]]:
        """Add a following agent, and yield its first messages: how many sources are polled, their health, the notices."""
        if not self._followers:
            self._beaten_at = now
        self._followers.add(follower)
        yield from self._how_it_is(follower, now)
        for notice in self._standing.values():
            if _stands(notice, now):
                yield follower, _seen(notice, now)

    @property
    def next_beat(self) -> float | None:
        """Monotonic seconds at which `beat` is due; None while no agent follows."""
        return self._beaten_at + BEAT if self._followers else None

    def beat(self, now: float) -> Iterator[tuple[int, Message]]:
        """Yield a sign of life and the health of the sources for each following agent, if they are due."""
        if self.next_beat is None or now < self.next_beat:
            return
        self._beaten_at = now
        for follower in sorted(self._followers):
            yield from self._how_it_is(follower, now)

    def _how_it_is(self, follower: int, now: float) -> Iterator[tuple[int, Message]]:
        yield follower, protocol.Watched(self._sources, self.window)
        for event in self._health.values():
            yield follower, _health(event, now)

    def left(self, session: int) -> None:
        self._followers.discard(session)

    def unseeing(self) -> list[HealthChanged]:
        """Return the last health of each source that does not see now."""
        return [event for event in self._health.values() if not event.health.seeing]

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


def _stands(notice: Notice, now: float) -> bool:
    """Return whether the notice still matters.

    AWS shows a notice for ever, even on a machine that was spared. An agent that follows later must not act on it.
    """
    return notice.severity is Severity.ADVISORY or now < notice.deadline + OUTLIVED


def _seen(notice: Notice, now: float) -> protocol.FeedNotice:
    left = max(0.0, notice.deadline - now)
    kind, severity = str(notice.kind), str(notice.severity)
    return protocol.FeedNotice(notice.id, kind, notice.source, left, notice.window, notice.detail, severity)


def _health(event: HealthChanged, now: float) -> protocol.FeedHealth:
    h, seconds = event.health, max(0.0, now - event.since)
    return protocol.FeedHealth(event.source, str(h.sight), h.reason, h.detail, h.advice, seconds)
