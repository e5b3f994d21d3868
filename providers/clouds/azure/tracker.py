"""What Azure's events mean for one machine, and which of them are one warning over time.

Pure: events and the time come in, notices go out. An event is known again by its id, or, since the id may change
when it starts, by its type and machines once its old id is gone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...notice import JITTER, Notice, NoticeKind, Severity
from .document import ScheduledEvent

SOURCE = "azure scheduledevents"

#: By type: its kind, what it asks for until it starts, and the least warning in seconds, as documented. The `Terminate`
#: of a scale set is 5 to 15 minutes, as its owner says.
_MEANINGS: dict[str, tuple[NoticeKind, Severity, float]] = {
    "preempt": (NoticeKind.PREEMPT, Severity.TERMINAL, 30.0),
    "terminate": (NoticeKind.TERMINATE, Severity.LATER, 300.0),
    "reboot": (NoticeKind.REBOOT, Severity.LATER, 900.0),
    "redeploy": (NoticeKind.REDEPLOY, Severity.LATER, 600.0),
    "freeze": (NoticeKind.FREEZE, Severity.ADVISORY, 900.0),
}

#: Seconds for what may be the end, and does not say when: as short as the shortest warning of any cloud.
_SHORT = 30.0

#: Seconds after its time at which an event that has not started ends nothing by itself: it may begin at any moment, or our
#: clock is ahead. Each run would be ended at its start. AWS's and GCP's are taken like that, too.
_STALE = 180.0

#: Seconds. An event under another id that may start so much later than the old one is the same event, by clocks that
#: are off; later than that, the old one was cancelled and this is a new one.
_SAME = 60.0

_RANKS = {Severity.ADVISORY: 0, Severity.LATER: 1, Severity.TERMINAL: 2}


@dataclass(frozen=True, slots=True)
class TrackedEvent:
    """A warning, and the event that says it now."""

    event: ScheduledEvent
    notice: Notice


class EventTracker:
    """Every warning that stands for this machine."""

    def __init__(self) -> None:
        #: By the event's key of now.
        self._standing: dict[str, TrackedEvent] = {}

    def read(
        self,
        events: Iterable[ScheduledEvent],
        names: frozenset[str],
        now: float,
        wall: float,
        *,
        whole: bool = True,
    ) -> tuple[Notice, ...]:
        """The notices that stand, after the cloud has said this.

        Args:
            events: what was read.
            names: this machine's, in lower case; none where it does not know its name.
            now: monotonic seconds.
            wall: Unix seconds.
            whole: False where something could not be read: then what is not among the events stands on.
        """
        ours = [event for event in events if event.concerns(names)]
        keys = {_key(event) for event in ours}
        left = {key: one for key, one in self._standing.items() if key not in keys}
        standing: dict[str, TrackedEvent] = {}
        for event in ours:
            key, notice = _key(event), _notice(event, names, now, wall)
            old = standing.get(key) or self._standing.get(key) or _taken(left, event, notice)
            standing[key] = TrackedEvent(event, notice if old is None else _merged(old.notice, notice))
        self._standing = standing if whole else {**left, **standing}
        return tuple(one.notice for one in self._standing.values())

    def event(self, notice_id: str) -> ScheduledEvent | None:
        """The event that says this notice now; None where it is gone."""
        for one in self._standing.values():
            if one.notice.id == notice_id:
                return one.event
        return None


def _key(event: ScheduledEvent) -> str:
    return event.id or f"{event.type}/{','.join(sorted(event.resources))}"


def _taken(left: dict[str, TrackedEvent], event: ScheduledEvent, notice: Notice) -> TrackedEvent | None:
    """The warning whose event has gone, where this one goes on with it under another id."""
    for key, old in left.items():
        goes_on = event.started or notice.deadline <= old.notice.deadline + _SAME
        if goes_on and event.is_like(old.event):
            return left.pop(key)
    return None


def _meaning(kind: str) -> tuple[NoticeKind, Severity, float]:
    known = _MEANINGS.get(kind.casefold())
    if known is None and "rebalance" in kind.casefold():
        # Its name is in no page; that it is "only advisory" is ("Spot Rebalance Recommendation signals").
        return NoticeKind.REBALANCE, Severity.ADVISORY, _SHORT
    return known or (NoticeKind.UNKNOWN, Severity.TERMINAL, _SHORT)


def _notice(event: ScheduledEvent, names: frozenset[str], now: float, wall: float) -> Notice:
    kind, severity, window = _meaning(event.type)
    left = None if event.not_before is None else max(0.0, event.not_before - wall)
    detail = event.words
    if kind is NoticeKind.UNKNOWN:
        detail += f": a type unknown to this program, taken as the end in {_SHORT:g} s"
    if event.started:
        left = 0.0
    elif left is None and severity is not Severity.ADVISORY:
        left = _SHORT
        detail += f": no date, taken as {_SHORT:g} s from now"
    past = event.not_before is not None and wall - event.not_before > _STALE
    if severity is Severity.LATER and past and not event.started:
        severity = Severity.ADVISORY
        detail += ": that is past, so it may begin at any moment"
    if severity is Severity.LATER and (event.started or event.not_before is None):
        severity, window = Severity.TERMINAL, _SHORT
    if severity is Severity.TERMINAL:
        # Here the clamp makes a wrong clock harmless. What comes later may be days off ("Azure tries to give 7 days").
        left = min(window if left is None else left, window)
    if not names:
        detail += "; it may be another machine's"
    deadline = now + (window if left is None else left)
    return Notice(_id(event), kind, SOURCE, deadline, now, severity, detail, window)


def _id(event: ScheduledEvent) -> str:
    """From what Azure says, and from nothing of ours: read again, also by another process, it is the same notice."""
    said = event.id or f"{event.type}/{zlib.crc32(_key(event).encode('utf-8', 'replace')):08x}"
    return f"azure/{ascii(said)[:80].strip(chr(39))}"


def _merged(old: Notice, new: Notice) -> Notice:
    """One warning is one value, first read when it was first read; what it asks for becomes only more, and its deadline
    only moves earlier, but for one that was far off and is put off. (The deadline of a mere warning means nothing.)"""
    worse = new if _RANKS[new.severity] >= _RANKS[old.severity] else old
    if old.severity is worse.severity is Severity.LATER and new.deadline > old.deadline + _SAME:
        return replace(new, id=old.id)
    if old.severity is Severity.ADVISORY and worse is new:
        return replace(new, id=old.id, seen_at=old.seen_at if new.severity is old.severity else new.seen_at)
    earlier = new.deadline < old.deadline - JITTER and new.severity is not Severity.ADVISORY
    if worse.severity is old.severity and not earlier:
        return old
    deadline = new.deadline if earlier else old.deadline
    if worse.severity is old.severity:
        return replace(worse, id=old.id, seen_at=old.seen_at, deadline=deadline)
    # What has begun is seen as that for the first time now, and is not over yet.
    return replace(worse, id=old.id, deadline=max(deadline, new.seen_at))
