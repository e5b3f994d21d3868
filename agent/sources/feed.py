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
from ..events import (
    Closed,
    Event,
    HealthChanged,
    NoticeGone,
    NoticeSeen,
    SourceGone,
    Watching,
    WindowTold,
)

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
        #: The sessions that follow the feed. Each message for all of them is one action, however many there are.
        self._followers: frozenset[int] = frozenset()
        self._beaten_at = 0.0
        #: Seconds of warning that the cloud itself reports; 0: it has reported none.
        self.window = 0.0

    def take(self, event: Event | None, now: float) -> Iterator[tuple[frozenset[int], Message]]:
        """Remember the event, and yield each message for following agents, with the agents that get it."""
        if self.next_beat is not None and now >= self.next_beat:  # a sign of life
            self._beaten_at = now
            for message in self._how_it_is(now):
                yield self._followers, message
        if isinstance(event, Watching):
            for message in self._joined(event.session, now):
                yield frozenset({event.session}), message
        elif isinstance(event, Closed):
            self._followers -= {event.session}
        elif event is not None and (news := self._note(event, now)) is not None and self._followers:
            yield self._followers, news

    def _note(self, event: Event, now: float) -> Message | None:
        if isinstance(event, NoticeSeen):
            self._standing[event.notice.id] = event.notice
            return _seen(event.notice, now) if _stands(event.notice, now) else None
        if isinstance(event, NoticeGone):
            known = self._standing.pop(event.id, None)
            return None if known is None else protocol.FeedNoticeGone(event.id)
        if isinstance(event, SourceGone):  # only in a run that follows a service; nobody follows a run
            self._health.pop(event.source, None)
        elif isinstance(event, WindowTold):
            self.window = event.seconds
            return protocol.Watched(self._sources, self.window)
        elif isinstance(event, HealthChanged):
            self._health[event.source] = event
            return _health(event, now)
        return None

    def _joined(self, follower: int, now: float) -> Iterator[Message]:
        """Add a following agent, and yield its first messages: how many sources are polled, their health, the notices."""
        if not self._followers:
            self._beaten_at = now
        self._followers |= {follower}
        yield from self._how_it_is(now)
        yield from (_seen(notice, now) for notice in self._standing.values() if _stands(notice, now))

    @property
    def next_beat(self) -> float | None:
        """Monotonic seconds at which a sign of life is due; None while no agent follows."""
        return self._beaten_at + BEAT if self._followers else None

    def _how_it_is(self, now: float) -> Iterator[Message]:
        yield protocol.Watched(self._sources, self.window)
        yield from (_health(event, now) for event in self._health.values())

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
