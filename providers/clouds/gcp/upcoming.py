"""`instance/upcoming-maintenance`: host maintenance that is planned, days or weeks ahead, or already under way.

The key has more ways to say "nothing" than to say something: `{}`, NONE with quotes and without, a JSON `error` whose
text says that nothing was received yet (mostly under 503), and 404 on machine types that are not told. All are good
news, and none of them is a broken service. What is planned comes in camelCase or in snake_case, in older forms with
`startTime` alone, and in one page's example below a name of its own and without the outer braces.
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

#: Seconds: some machine types are told 90 days ahead. No word moves a deadline further away than this.
_WINDOW = 100 * 24 * 3600.0

#: Seconds after the start of its window at which maintenance that is *found* to be pending ends nothing any more. It may
#: begin at any moment, or in hours, or was left behind: each run would be ended at its start. AWS's events are taken
#: like that, too. Once it is under way, it is the end.
_STALE = 180.0
#: As long after the end of the window the words for it are others. A clock may be some minutes off.
_OVER = 3600.0

#: Looks for which a notice waits for the VM's policy where that cannot be read. Answers of 503 come around maintenance, for
#: less than a second, and a look that failed is followed by the next within two.
_LOOKS = 3

#: One of these stands in whatever is planned.
_TELLING = frozenset({"type", "maintenancestatus", "windowstarttime", "starttime"})


class UpcomingMaintenance(GcpSource):
    """What is planned for the VM's host. What is rescheduled is withdrawn, and comes again as another notice."""

    name = SOURCE

    def __init__(self, metadata: GcpMetadata, clock: Clock) -> None:
        super().__init__(metadata, clock)
        self._notice: Notice | None = None
        #: Whether this VM is moved; None while that could not be read, at so many looks that showed a notice.
        self._moves: bool | None = None
        self._unread = 0

    def _look(self) -> Sighting:
        answer = self._metadata.get(_ASKED)
        if isinstance(answer, Health):
            return Sighting(answer)
        found = parse_upcoming(answer.status, answer.body, self._clock)
        if found is None:
            return Sighting(self._metadata.unread(_ASKED, answer))
        if not found:
            self._notice = None
            return Sighting(SEEING)
        (notice,) = found
        problem = self._learn_policy()
        if problem is not None and self._moves is None and self._unread < _LOOKS:
            self._unread += 1
            return Sighting(problem, () if self._notice is None else (self._notice,))
        if self._moves:  # another id: what was taken for an end before is withdrawn
            notice = replace(
                notice, id=f"{notice.id}/moved", kind=NoticeKind.MIGRATE, severity=Severity.ADVISORY
            )
        self._notice = same(self._notice, notice)
        return Sighting(SEEING, (self._notice,))

    def _learn_policy(self) -> Health | None:
        """Whether this VM is moved to another host for maintenance, and goes on: no spot VM is, and none with a GPU. Why
        that cannot be read, where it cannot; then what was read before holds."""
        policy = self._metadata.get(_POLICY)
        if isinstance(policy, Health):
            return policy
        if policy.status not in (200, 404):
            return self._metadata.unread(_POLICY, policy)
        self._moves, self._unread = policy.status == 200 and policy.body.strip() == b"MIGRATE", 0
        return None


def parse_upcoming(status: int, body: bytes, clock: Clock) -> tuple[Notice, ...] | None:
    """What an answer of the key says: one notice, or none; None where it cannot be read. Total.

    A notice is believed under any status, its absence only as it is known to be said.
    """
    said = _json(body)
    if isinstance(said, dict) and (fields := _fields(said)):
        found = _read(fields, clock)
        return found if found or status == 200 else None
    if status == 404:
        return ()
    if said == {} or (isinstance(said, str) and said.strip() == "NONE"):
        return () if status == 200 else None
    error = said.get("error") if isinstance(said, dict) else None
    return () if isinstance(error, str) and "no notifications" in error.lower() else None


def _json(body: bytes) -> Any:
    """The value that a body is; of NONE without quotes the word, and None for what is no value."""
    if body.strip() == b"NONE":
        return "NONE"
    # The second form is the example's: a name and a value, and no braces.
    for text in (body, b"{" + body + b"}") if body.lstrip().startswith(b'"') else (body,):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    return None


def _fields(said: dict[str, Any]) -> dict[str, Any]:
    """What is planned, under names in one spelling; nothing where this is something else."""
    for candidate in (said, *said.values()):
        if isinstance(candidate, dict):
            fields = {re.sub("[^a-z]", "", name.lower()): value for name, value in candidate.items()}
            if fields.keys() & _TELLING:
                return fields
        if len(said) != 1:  # more than one name: no wrapper
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
    elif start is None:  # no end that could be waited for; the last hour has a key of its own
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
        id += "/begun"  # what was told of its planned start may have had its end long ago, and was outlived
    return (Notice(id, NoticeKind.MAINTENANCE, SOURCE, deadline, now, severity, detail, _WINDOW),)


def _word(said: Any) -> str:
    return re.sub("[^A-Z_]", "", said.upper())[:30] if isinstance(said, str) else ""


def _shown(value: object) -> str:
    """A server's words, fit for one line."""
    return ascii(value)[:60].strip("'")
