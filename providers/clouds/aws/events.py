"""What AWS says ahead of time: that a spot instance is at risk, and that an instance has a day on which it ends.

Neither is a notice yet. A rebalance recommendation is advice: of 30 in 17 hours, 21 came to nothing
(aws-node-termination-handler#141). A scheduled event has a time, days ahead, and is respected: nothing ends before it
is near (that watcher drains at once).

Such a time is read against the machine's clock, and here the clamp does not help, for the window is a year. A clock that
is ahead ends a run early, which costs a restart; one that is behind makes the save late, by as much. Each look reads the
time anew, and a deadline moves earlier as soon as the clock is put right; later it does not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...clock import Clock, monotonic_deadline
from ...dates import parse_iso
from ...health import SEEING
from ...notice import Notice, NoticeKind, Severity, Sighting
from ..http import parse_json
from .source import STALE, AwsSource, parse_date, shown, unread

_REBALANCE = "events/recommendations/rebalance"
_SCHEDULED = "events/maintenance/scheduled"

#: Seconds that an interruption leaves, should one follow the recommendation at once.
_AT_LEAST = 120.0

#: Seconds, a year: scheduled events have leads of weeks. Beyond it a date is a mistake.
_AHEAD = 366 * 86400.0

#: What the documentation of scheduled events has. A retired instance is stopped, or terminated where its root is on the
#: machine itself.
_CODES = {
    "instance-stop": NoticeKind.STOP,
    "instance-retirement": NoticeKind.TERMINATE,
    "instance-reboot": NoticeKind.REBOOT,
    "system-reboot": NoticeKind.REBOOT,
    "system-maintenance": NoticeKind.MAINTENANCE,
}

#: The states of an event that is history. Any other word, and none, is an event that stands.
_OVER = ("completed", "canceled", "cancelled")


class Rebalance(AwsSource):
    """`events/recommendations/rebalance` as a `NoticeSource`. It stays, once it is there, and so does the advice."""

    key = _REBALANCE
    single = True

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        return parse_rebalance(body, self._clock, strict=not sure)


class AwsScheduledEvents(AwsSource):
    """`events/maintenance/scheduled` as a `NoticeSource`. What is no longer listed, or over, is withdrawn; what is given
    another day is another notice."""

    key = _SCHEDULED
    withdraws = True

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        later = {id for id, notice in self._shown.items() if notice.severity is Severity.LATER}
        said = parse_scheduled(body, self._clock, expected=later)
        return said if sure else Sighting(unread(_SCHEDULED, body, "list of events"))


def parse_rebalance(body: bytes, clock: Clock, *, strict: bool = False) -> Sighting:
    """What a body of the key says: advice, or garbage (blind). Total.

    Args:
        strict: take only a time that can be read.
    """
    said = parse_json(body)
    time = said.get("noticeTime") if isinstance(said, dict) else None
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
    """What a body of the key says: the events that stand, and whether each item could be read.

    Total: no bytes raise, and no item that may be an event passes for "nothing": where one cannot be read, the source
    is blind, and shows the others.

    Args:
        expected: ids of events that were seen before their time. They stay what they were when it is past.
    """
    said = parse_json(body)
    if not isinstance(said, list):
        return Sighting(unread(_SCHEDULED, body, "list of events"))
    health, notices = SEEING, dict[str, Notice]()
    for item in said:
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
    """By its state, or by what stands before its description in the history."""
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
        detail += ": an event unknown to this program, taken as the end of this machine"
    if clock.time() - wall > STALE and id not in expected:
        # AWS begins when it likes from then on. Ending each run at its start for hours would save nothing.
        severity = Severity.ADVISORY
        detail += ": that is past, so it may begin at any moment"
    deadline = monotonic_deadline(wall, clock, _AHEAD)
    return Notice(id, kind, f"aws {_SCHEDULED}", deadline, clock.monotonic(), severity, detail)


def _wall(time: Any) -> float | None:
    date = parse_date(time)
    return parse_iso(time) if date is None else date
