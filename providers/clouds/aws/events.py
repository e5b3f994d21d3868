"""AWS's early warnings: a spot instance is at risk, or an instance has a date on which it ends.

Neither ends the run at once. A rebalance recommendation is advice: of 30 in 17 hours, 21 came to nothing
(aws-node-termination-handler#141). A scheduled event has a time, days ahead, and the agent respects it: it ends
nothing before that time is near. (aws-node-termination-handler drains at once.)

The agent reads such a time against the machine's clock. The clamp does not help here, because the window is a year. A clock
that is ahead ends a run early, which costs a restart. A clock that is behind delays the save by the same amount. Each poll
reads the time again. After a clock is corrected, the deadline can move earlier, but not later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...clock import Clock, monotonic_deadline
from ...dates import parse_date
from ...health import SEEING
from ...notice import Notice, NoticeKind, Severity, Sighting
from ..http import parse_json
from .source import STALE, AwsSource, shown, unread

_REBALANCE = "events/recommendations/rebalance"
_SCHEDULED = "events/maintenance/scheduled"

#: Seconds that an interruption still leaves if it follows the recommendation at once.
_AT_LEAST = 120.0

#: Seconds: a year. Scheduled events come weeks ahead; a date beyond a year is a mistake.
_AHEAD = 366 * 86400.0

#: The documented codes of scheduled events. A retired instance is stopped, or terminated if its root device is an instance
#: store.
_CODES = {
    "instance-stop": NoticeKind.STOP,
    "instance-retirement": NoticeKind.TERMINATE,
    "instance-reboot": NoticeKind.REBOOT,
    "system-reboot": NoticeKind.REBOOT,
    "system-maintenance": NoticeKind.MAINTENANCE,
}

#: The states of a past event. With any other state, or none, the event still stands.
_OVER = ("completed", "canceled", "cancelled")


class Rebalance(AwsSource):
    """`events/recommendations/rebalance` as a `NoticeSource`. Once the key is there it stays, and so does the advice."""

    key = _REBALANCE
    single = True

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        return parse_rebalance(body, self._clock, strict=not sure)


class AwsScheduledEvents(AwsSource):
    """`events/maintenance/scheduled` as a `NoticeSource`.

    An event that is no longer listed, or is over, is withdrawn. An event with a new date is a new notice.
    """

    key = _SCHEDULED
    withdraws = True

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        later = {id for id, notice in self._shown.items() if notice.severity is Severity.LATER}
        sighting = parse_scheduled(body, self._clock, expected=later)
        return sighting if sure else Sighting(unread(_SCHEDULED, body, "list of events"))


def parse_rebalance(body: bytes, clock: Clock, *, strict: bool = False) -> Sighting:
    """Return what a body of the key means: advice, or garbage (blind). Never raises.

    Args:
        strict: accept only a time that can be parsed.
    """
    document = parse_json(body)
    time = document.get("noticeTime") if isinstance(document, dict) else None
    wall = _wall(time)
    if not isinstance(time, str) or not time.strip() or (strict and wall is None):
        return Sighting(unread(_REBALANCE, body, "noticeTime"))
    now = clock.monotonic()
    id = f"aws/rebalance/{shown(time) if wall is None else int(wall)}"
    detail = f"recommended at {shown(time)}"
    kind, source = NoticeKind.REBALANCE, f"aws {_REBALANCE}"
    notice = Notice(id, kind, source, now + _AT_LEAST, now, Severity.ADVISORY, detail)
    return Sighting(SEEING, (notice,))


def parse_scheduled(body: bytes, clock: Clock, *, expected: Collection[str] = ()) -> Sighting:
    """Return the events that stand, and whether every entry of the body could be read.

    Never raises, and never skips an entry that may be an event. If one cannot be read, the source is blind, and still
    shows the others.

    Args:
        expected: ids of events that were seen before their time. They keep their severity after it has passed.
    """
    entries = parse_json(body)
    if not isinstance(entries, list):
        return Sighting(unread(_SCHEDULED, body, "list of events"))
    health, notices = SEEING, dict[str, Notice]()
    for item in entries:
        if _is_over(item):
            continue
        notice = _event(item, clock, expected)
        if notice is None:
            what = shown(item.get("Code") if isinstance(item, dict) else item)
            health = unread(_SCHEDULED, what.encode(), "Code and NotBefore")
        else:
            notices[notice.id] = notice
    return Sighting(health, tuple(notices.values()))


def _is_over(item: Any) -> bool:
    """Return whether the event is over, by its state or by the prefix of its description in the history."""
    if not isinstance(item, dict):
        return False
    words = (item.get(name) for name in ("State", "Description"))
    state, text = (word.strip().lower() if isinstance(word, str) else "" for word in words)
    return state in _OVER or text.startswith(tuple(f"[{word}]" for word in _OVER))


def _event(item: Any, clock: Clock, expected: Collection[str]) -> Notice | None:
    code, start = (item.get("Code"), item.get("NotBefore")) if isinstance(item, dict) else (None, None)
    wall = _wall(start)
    if not isinstance(code, str) or not code.strip() or wall is None:
        return None
    code = code.strip().lower()
    kind = _CODES.get(code, NoticeKind.UNKNOWN)
    id = f"aws/{shown(code)}/{shown(item.get('EventId'))}/{int(wall)}"
    severity, detail = Severity.LATER, f"{shown(code)}, not before {shown(start)}"
    if kind is NoticeKind.UNKNOWN:
        detail += ": an event unknown to this program, assumed to be the end of this machine"
    if clock.time() - wall > STALE and id not in expected:
        # From then on AWS may begin at any time. Ending every run at its start for hours would save nothing.
        severity = Severity.ADVISORY
        detail += ": that is past, so it may begin at any moment"
    deadline = monotonic_deadline(wall, clock, _AHEAD)
    return Notice(id, kind, f"aws {_SCHEDULED}", deadline, clock.monotonic(), severity, detail)


def _wall(time: Any) -> float | None:
    return parse_date(time)
