"""The list of Scheduled Events as a machine of Azure reads it, and what time does to it.

An event is scheduled, starts at its time or when it is approved, and leaves the list when it is over; no other status
exists. Two things that Azure's own mock server does are options here: ISO dates, and a new id when an event starts.
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
    """One event, and its times in monotonic seconds."""

    id: str
    type: str
    resources: tuple[str, ...]
    begins_at: float
    #: As it is written until the event starts.
    not_before: str
    ends_at: float | None = None

    @property
    def started(self) -> bool:
        return self.ends_at is not None


class EventList:
    """The document. Its owner locks it.

    Args:
        clock: by which events start and end.
        dates: how `NotBefore` is written.
        new_ids: whether an event has another id once it has started.
        tell: is told what happens, in one line each.
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
        """Schedule an event for so many seconds from now, by Azure's clock, which is `skew` seconds ahead of ours."""
        now, wall = self._clock.monotonic(), self._clock.time() + window + skew
        event = Scheduled(_new_id(), kind, resources, now + window, self._date(wall))
        self.events.append(event)
        self._incarnation += 1
        return event

    def start(self, event: Scheduled) -> None:
        """It begins, whatever its time was."""
        if event.started:
            return
        event.ends_at = self._clock.monotonic() + _LASTS
        if self._new_ids:
            event.id = _new_id()
        self._incarnation += 1
        self._tell(f"{event.type} of {', '.join(event.resources)} has started")

    def remove(self, event: Scheduled) -> None:
        """It is over, or was called off."""
        self.events.remove(event)
        self._incarnation += 1

    def tick(self) -> None:
        """Bring the list up to this instant."""
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
