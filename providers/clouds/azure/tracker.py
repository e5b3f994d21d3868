"""The meaning of Azure's events for one machine, and the matching of events that are one warning over time.

Pure: events and the time come in, notices go out. The tracker recognizes an event by its id. The id may change when the
event starts. So, once the old id is gone, the tracker recognizes the event by its type and machines.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...notice import JITTER, Notice, NoticeKind, Severity
from .document import ScheduledEvent

SOURCE = "azure scheduledevents"

#: By type: the kind, the severity until the event starts, and the shortest documented warning in seconds. The `Terminate`
#: of a scale set comes 5 to 15 minutes ahead, as its owner sets it.
_MEANINGS: dict[str, tuple[NoticeKind, Severity, float]] = {
    "preempt": (NoticeKind.PREEMPT, Severity.TERMINAL, 30.0),
    "terminate": (NoticeKind.TERMINATE, Severity.LATER, 300.0),
    "reboot": (NoticeKind.REBOOT, Severity.LATER, 900.0),
    "redeploy": (NoticeKind.REDEPLOY, Severity.LATER, 600.0),
    "freeze": (NoticeKind.FREEZE, Severity.ADVISORY, 900.0),
}

#: Seconds for an event that may be the end and has no date: as short as the shortest warning of any cloud.
_SHORT = 30.0

#: Seconds after its time at which an event that has not started no longer ends the run by itself. It may begin at any
#: moment, or the clock is ahead; otherwise each run would end at its start. AWS's and GCP's events are treated alike.
_STALE = 180.0

#: Seconds. If an event under another id may start at most this much later than the old one, it is the same event, with
#: clocks that differ. If it may start still later, the old event was cancelled and this is a new one.
_SAME = 60.0

_RANKS = {Severity.ADVISORY: 0, Severity.LATER: 1, Severity.TERMINAL: 2}


@dataclass(frozen=True, slots=True)
class TrackedEvent:
    """A warning, and the event that announces it now."""

    event: ScheduledEvent
    notice: Notice


class EventTracker:
    """All warnings that stand for this machine."""

    def __init__(self) -> None:
        #: By the event's current key.
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
        """Return the notices that stand after this answer of the cloud.

        Args:
            events: the events read from the answer.
            names: this machine's names, in lower case; empty if they are not known.
            now: monotonic seconds.
            wall: Unix seconds.
            whole: False if some of the answer could not be read: then events missing from it still stand.
        """
        ours = [event for event in events if event.concerns(names)]
        keys = {_key(event) for event in ours}
        unlisted = {key: one for key, one in self._standing.items() if key not in keys}
        standing: dict[str, TrackedEvent] = {}
        for event in ours:
            key, notice = _key(event), _notice(event, names, now, wall)
            old = standing.get(key) or self._standing.get(key) or _taken(unlisted, event, notice)
            standing[key] = TrackedEvent(event, notice if old is None else _merged(old.notice, notice))
        self._standing = standing if whole else {**unlisted, **standing}
        return tuple(one.notice for one in self._standing.values())

    def event(self, notice_id: str) -> ScheduledEvent | None:
        """Return the event that announces this notice now, or None if it is gone."""
        for one in self._standing.values():
            if one.notice.id == notice_id:
                return one.event
        return None


def _key(event: ScheduledEvent) -> str:
    return event.id or f"{event.type}/{','.join(sorted(event.resources))}"


def _taken(unlisted: dict[str, TrackedEvent], event: ScheduledEvent, notice: Notice) -> TrackedEvent | None:
    """Take and return the warning that this event continues under another id, or None."""
    for key, old in unlisted.items():
        goes_on = event.started or notice.deadline <= old.notice.deadline + _SAME
        if goes_on and event.is_like(old.event):
            return unlisted.pop(key)
    return None


def _meaning(kind: str) -> tuple[NoticeKind, Severity, float]:
    known = _MEANINGS.get(kind.casefold())
    if known is None and "rebalance" in kind.casefold():
        # No page has its name, but a page calls it "only advisory" ("Spot Rebalance Recommendation signals").
        return NoticeKind.REBALANCE, Severity.ADVISORY, _SHORT
    return known or (NoticeKind.UNKNOWN, Severity.TERMINAL, _SHORT)


def _notice(event: ScheduledEvent, names: frozenset[str], now: float, wall: float) -> Notice:
    kind, severity, window = _meaning(event.type)
    seconds = None if event.not_before is None else max(0.0, event.not_before - wall)
    detail = event.words
    if kind is NoticeKind.UNKNOWN:
        detail += f": a type unknown to this program, assumed to be the end in {_SHORT:g} s"
    if event.started:
        seconds = 0.0
    elif seconds is None and severity is not Severity.ADVISORY:
        seconds = _SHORT
        detail += f": no date, taken as {_SHORT:g} s from now"
    past = event.not_before is not None and wall - event.not_before > _STALE
    if severity is Severity.LATER and past and not event.started:
        severity = Severity.ADVISORY
        detail += ": that is past, so it may begin at any moment"
    if severity is Severity.LATER and (event.started or event.not_before is None):
        severity, window = Severity.TERMINAL, _SHORT
    if severity is Severity.TERMINAL:
        # Here the clamp makes a wrong clock harmless. LATER events may be days off ("Azure tries to give 7 days").
        seconds = min(window if seconds is None else seconds, window)
    if not names:
        detail += "; it may be another machine's"
    deadline = now + (window if seconds is None else seconds)
    return Notice(_id(event), kind, SOURCE, deadline, now, severity, detail, window)


def _id(event: ScheduledEvent) -> str:
    """Return the notice's id, made only from Azure's values: another read, even by another process, gives the same id."""
    identity = event.id or f"{event.type}/{zlib.crc32(_key(event).encode('utf-8', 'replace')):08x}"
    return f"azure/{ascii(identity)[:80].strip(chr(39))}"


def _merged(old: Notice, new: Notice) -> Notice:
    """Return one warning for two readings of it: first seen at the first reading, with the greater severity.

    Its deadline only moves earlier, except for a LATER event that is postponed. An advisory's deadline means nothing.
    """
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
    # The event has begun: for its new severity it is first seen now, and it is not over yet.
    return replace(worse, id=old.id, deadline=max(deadline, new.seen_at))
