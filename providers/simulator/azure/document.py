"""The list of Scheduled Events as an Azure machine reads it, and its changes over time.

An event is scheduled, starts at its time or at its approval, and leaves the list when it is over. There is no other status.
Two habits of Azure's own mock server are options here: ISO dates, and a new id when an event starts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Literal

from ...clock import Clock

#: Seconds from the start of an event to its end: "Started to Completed: 10 minutes".
_LASTS = 600.0

_DESCRIPTIONS = {
    "Preempt": "Spot eviction",
    "Terminate": "Virtual machine is going to be deleted by authorized user.",
    "Reboot": "Virtual machine is going to be restarted as requested by authorized user.",
    "Redeploy": "Host server is undergoing an emergency repair.",
    "Freeze": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
}


@dataclass(slots=True)
class Scheduled:
    """One event, with its times in monotonic seconds."""

    id: str
    type: str
    resources: tuple[str, ...]
    begins_at: float
    #: The text of `NotBefore` until the event starts.
    not_before: str
    ends_at: float | None = None

    @property
    def started(self) -> bool:
        return self.ends_at is not None


class EventList:
    """The document of events. Its owner locks it.

    Args:
        clock: starts and ends the events.
        dates: the format of `NotBefore`.
        new_ids: whether an event gets a new id when it starts.
        tell: takes one line for each event.
    """

    def __init__(
        self,
        clock: Clock,
        dates: Literal["rfc1123", "iso"],
        new_ids: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._dates = dates
        self._new_ids = new_ids
        self._tell = tell
        self._incarnation = 1
        self.events: list[Scheduled] = []

    def add(self, kind: str, window: float, resources: tuple[str, ...], skew: float) -> Scheduled:
        """Schedule an event in `window` seconds. Azure's clock, which dates it, is `skew` seconds ahead of ours."""
        now, wall = self._clock.monotonic(), self._clock.time() + window + skew
        event = Scheduled(_new_id(), kind, resources, now + window, self._date(wall))
        self.events.append(event)
        self._incarnation += 1
        return event

    def start(self, event: Scheduled) -> None:
        """Start an event now, even if its time has not come."""
        if event.started:
            return
        event.ends_at = self._clock.monotonic() + _LASTS
        if self._new_ids:
            event.id = _new_id()
        self._incarnation += 1
        self._tell(f"{event.type} of {', '.join(event.resources)} has started")

    def remove(self, event: Scheduled) -> None:
        """Remove an event that is over or was canceled."""
        self.events.remove(event)
        self._incarnation += 1

    def tick(self) -> None:
        """Bring the list up to date: start the events that are due, and remove those that are over."""
        now = self._clock.monotonic()
        for event in tuple(self.events):
            if now >= event.begins_at:
                self.start(event)
            if event.ends_at is not None and now >= event.ends_at:
                self.remove(event)

    def body(self) -> bytes:
        events = [_shown(event) for event in self.events]
        return json.dumps({"DocumentIncarnation": self._incarnation, "Events": events}).encode()

    def _date(self, wall: float) -> str:
        if self._dates == "iso":
            return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return formatdate(wall, usegmt=True)


def _shown(event: Scheduled) -> dict[str, Any]:
    return {
        "EventId": event.id,
        "EventStatus": "Started" if event.started else "Scheduled",
        "EventType": event.type,
        "ResourceType": "VirtualMachine",
        "Resources": list(event.resources),
        "NotBefore": "" if event.started else event.not_before,
        "Description": _DESCRIPTIONS.get(event.type, ""),
        "EventSource": "User" if event.type in ("Terminate", "Reboot") else "Platform",
        "DurationInSeconds": 5 if event.type == "Freeze" else -1,
    }


def _new_id() -> str:
    return str(uuid.uuid4()).upper()
