"""`instance/upcoming-maintenance`: host maintenance that is planned, days or weeks ahead, or already under way.

The key has many ways to announce nothing: `{}`, NONE with and without quotes, and 404 on machine types that get no
announcements. Another is a JSON `error` whose text tells that nothing was received yet (mostly under 503). All are good
news, and none of them is a broken service. Planned maintenance comes in camelCase or in snake_case, and in older forms with
`startTime` alone. In one page's example it stands below a name of its own, without the outer braces.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from ...clock import Clock, monotonic_deadline
from ...health import SEEING, Health
from ...notice import Notice, NoticeKind, Severity, Sighting
from .metadata import GcpMetadata
from .source import GcpSource, same
from .times import parse_instant

KEY = "instance/upcoming-maintenance"
_ASKED = f"{KEY}?alt=json"
SOURCE = f"gcp {KEY}"
_POLICY = "instance/scheduling/on-host-maintenance"

#: Seconds: some machine types learn of maintenance 90 days ahead. No value moves a deadline further away than this.
_WINDOW = 100 * 24 * 3600.0

#: Seconds after the start of its window at which newly read pending maintenance no longer ends the run. It may begin at any
#: moment, or in hours, or be a leftover; otherwise each run would end at its start. AWS's events are treated alike. Once
#: the maintenance is under way, it is the end.
_STALE = 180.0
#: Seconds after the end of the window at which the notice's text changes. A clock may be some minutes off.
_OVER = 3600.0

#: Polls for which a notice waits for the VM's policy if the policy cannot be read. Answers of 503 come around maintenance,
#: for less than a second, and the next poll follows a failed one within two.
_LOOKS = 3

#: Every announcement of planned maintenance has one of these fields.
_TELLING = frozenset({"type", "maintenancestatus", "windowstarttime", "starttime"})


class UpcomingMaintenance(GcpSource):
    """The maintenance planned for the VM's host. A rescheduled one is withdrawn, and comes again as another notice."""

    name = SOURCE

    def __init__(self, metadata: GcpMetadata, clock: Clock) -> None:
        super().__init__(metadata, clock)
        self._notice: Notice | None = None
        #: Whether this VM is moved to another host; None until that could be read.
        self._moves: bool | None = None
        #: Polls that showed a notice while the policy could not be read.
        self._unread = 0

    def _look(self) -> Sighting:
        answer = self._metadata.get(_ASKED)
        if isinstance(answer, Health):
            return Sighting(answer)
        notices = parse_upcoming(answer.status, answer.body, self._clock)
        if notices is None:
            return Sighting(self._metadata.unread(_ASKED, answer))
        if not notices:
            self._notice = None
            return Sighting(SEEING)
        (notice,) = notices
        problem = self._learn_policy()
        if problem is not None and self._moves is None and self._unread < _LOOKS:
            self._unread += 1
            return Sighting(problem, () if self._notice is None else (self._notice,))
        if self._moves:  # another id withdraws the notice that was taken for an end before
            notice = replace(
                notice, id=f"{notice.id}/moved", kind=NoticeKind.MIGRATE, severity=Severity.ADVISORY
            )
        self._notice = same(self._notice, notice)
        return Sighting(SEEING, (self._notice,))

    def _learn_policy(self) -> Health | None:
        """Learn whether this VM moves to another host for maintenance and goes on; return why that cannot be read.

        No spot VM moves, and none with a GPU. If the policy cannot be read, the last value stays.
        """
        policy = self._metadata.get(_POLICY)
        if isinstance(policy, Health):
            return policy
        if policy.status not in (200, 404):
            return self._metadata.unread(_POLICY, policy)
        self._moves, self._unread = policy.status == 200 and policy.body.strip() == b"MIGRATE", 0
        return None


def parse_upcoming(status: int, body: bytes, clock: Clock) -> tuple[Notice, ...] | None:
    """Return the notices in an answer of the key, one or none; None if it cannot be read. Never raises.

    A notice counts under any status. Its absence counts only in the known forms.
    """
    value = _json(body)
    if isinstance(value, dict) and (fields := _fields(value)):
        notices = _read(fields, clock)
        return notices if notices or status == 200 else None
    if status == 404:
        return ()
    if value == {} or (isinstance(value, str) and value.strip() == "NONE"):
        return () if status == 200 else None
    error = value.get("error") if isinstance(value, dict) else None
    return () if isinstance(error, str) and "no notifications" in error.lower() else None


def _json(body: bytes) -> Any:
    """Return the body's JSON value, "NONE" for NONE without quotes, and None for a body that is not JSON."""
    if body.strip() == b"NONE":
        return "NONE"
    # The second form is the example's: a name and a value without braces.
    for text in (body, b"{" + body + b"}") if body.lstrip().startswith(b'"') else (body,):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    return None


def _fields(document: dict[str, Any]) -> dict[str, Any]:
    """Return the announcement's fields, with names in one spelling; empty if the document is not an announcement."""
    for candidate in (document, *document.values()):
        if isinstance(candidate, dict):
            fields = {re.sub("[^a-z]", "", name.lower()): value for name, value in candidate.items()}
            if fields.keys() & _TELLING:
                return fields
        if len(document) != 1:  # with more than one name, it is not a wrapper
            break
    return {}


def _read(fields: dict[str, Any], clock: Clock) -> tuple[Notice, ...] | None:
    sort, state = _word(fields.get("type")), _word(fields.get("maintenancestatus"))
    if sort == "NONE" or state == "COMPLETE":
        return ()
    written = fields.get("windowstarttime", fields.get("starttime"))
    start, end = parse_instant(written), parse_instant(fields.get("windowendtime"))
    if not sort and not state and start is None:
        return None
    now, severity = clock.monotonic(), Severity.LATER
    deadline, doubt = now + _WINDOW, ""
    if state == "ONGOING":
        deadline = now
    elif start is None:  # there is no end to wait for; the last hour has a key of its own
        severity, doubt = Severity.ADVISORY, ": not a time"
    elif clock.time() - start > _STALE:
        over = end is not None and clock.time() - end > _OVER
        severity = Severity.ADVISORY
        doubt = ": its window is over, and it never began" if over else ": it may begin at any moment"
    else:
        deadline = monotonic_deadline(start, clock, _WINDOW)
    detail = " ".join(word for word in (sort, state, "at", _shown(written)) if word) + doubt
    id = f"gcp/upcoming-maintenance/{sort}/{_shown(written) if start is None else int(start)}"
    if state == "ONGOING" and start is not None and clock.time() - start > _STALE:
        id += "/begun"  # the end announced for the planned start may have passed long ago, and the VM outlived it
    return (Notice(id, NoticeKind.MAINTENANCE, SOURCE, deadline, now, severity, detail, _WINDOW),)


def _word(value: Any) -> str:
    return re.sub("[^A-Z_]", "", value.upper())[:30] if isinstance(value, str) else ""


def _shown(value: object) -> str:
    """Return a server's value as text for one line."""
    return ascii(value)[:60].strip("'")
