"""The scheduled events of an instance: the active ones under one key, the ended ones under another."""

from __future__ import annotations

import json
from email.utils import formatdate

#: The event codes of AWS's documentation. AWS may add more.
CODES = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot", "system-maintenance")

SCHEDULED = "events/maintenance/scheduled"
HISTORY = "events/maintenance/history"

#: Seconds that an event may last, and seconds by which it can be postponed.
_LASTS, _PUT_OFF = 7200.0, 7 * 86400.0


class Schedule:
    """The active and the ended events. Its owner locks it."""

    def __init__(self) -> None:
        self._events: list[dict[str, str]] = []
        self._made = 0

    def add(self, code: str, start: float, state: str) -> str:
        """List an event that does not begin before `start` (Unix seconds), and return its id."""
        self._made += 1
        event = {
            "NotBefore": date(start),
            "Code": code,
            "Description": f"The instance is scheduled for {code}",
            "EventId": f"instance-event-{self._made:017x}",
            "NotAfter": date(start + _LASTS),
            "State": state,
        }
        if code in ("instance-reboot", "system-reboot"):
            event["NotBeforeDeadline"] = date(start + _PUT_OFF)
        self._events.append(event)
        return event["EventId"]

    def move(self, id: str, start: float) -> None:
        """Move an event to another start (Unix seconds)."""
        for event in self._events:
            if event["EventId"] == id:
                event |= {"NotBefore": date(start), "NotAfter": date(start + _LASTS)}

    def end(self, state: str, id: str = "") -> None:
        """Move an event, or all active ones, into the history as `completed` or `canceled`."""
        for event in self._events:
            if event["State"] == "active" and id in ("", event["EventId"]):
                event["State"] = state
                event["Description"] = f"[{state.title()}] {event['Description']}"

    def clear(self) -> None:
        self._events = []

    def bodies(self) -> dict[str, bytes]:
        """Return the value of each of the two keys."""
        active = [event for event in self._events if event["State"] == "active"]
        over = [event for event in self._events if event["State"] != "active"]
        return {
            key: json.dumps(events, indent=2).encode()
            for key, events in ((SCHEDULED, active), (HISTORY, over))
        }


def date(wall: float) -> str:
    """Return an RFC 1123 date without its day of the week, such as `21 Jan 2019 09:00:43 GMT`."""
    return formatdate(wall, usegmt=True).partition(", ")[2]
