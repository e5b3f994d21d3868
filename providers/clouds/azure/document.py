"""Parser of Azure's document of Scheduled Events: any bytes become events, or a line that tells why not.

Pure. No bytes raise, and the parser never drops an entry that may be an event silently (`Document.problem`).
Written from the page "Scheduled Events for Linux VMs", and from deviations in the field: ISO dates, and another id for
the same event once it has started (both: Azure-Samples/scheduled-events-mock-server).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...dates import parse_date


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """One entry of the document's list."""

    #: Azure's id; "" if there is none.
    id: str
    #: The type as Azure writes it: "Preempt".
    type: str
    #: The machines that the event concerns, as written. Empty if they cannot be read: then it may concern any machine.
    resources: tuple[str, ...]
    started: bool
    #: Unix seconds before which the event does not start. None: no date, or an unreadable one.
    not_before: float | None
    #: Azure's description of the event, in one line.
    words: str

    def concerns(self, names: frozenset[str]) -> bool:
        """Return whether the event may concern the machine with these names (in lower case). If unknown, it may.

        Taking another machine's notice for this machine's costs a save and a start. The opposite mistake costs the work.
        """
        if not names or not self.resources:
            return True
        return any(resource.casefold() in names for resource in self.resources)

    def is_only_about(self, names: frozenset[str]) -> bool:
        """Return whether the event is known to concern this machine alone."""
        return len(self.resources) == 1 and self.resources[0].casefold() in names

    def is_like(self, other: ScheduledEvent) -> bool:
        """Return whether both events have the same type and concern the same machines."""
        return self._content() == other._content()

    def _content(self) -> tuple[str, frozenset[str]]:
        return self.type.casefold(), frozenset(resource.casefold() for resource in self.resources)


@dataclass(frozen=True, slots=True)
class Document:
    """The readable part of an answer."""

    events: tuple[ScheduledEvent, ...]
    #: The unreadable part, in one line: an event missing from `events` may then still stand. "" if all was readable.
    problem: str = ""


def parse_document(body: bytes) -> Document:
    """Return the events of an answer.

    `DocumentIncarnation` must be present, but its value is ignored: the bytes themselves show changes better.
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not text, or nested to hurt
        return Document((), f"no JSON in {_shown(body[:60].decode('utf-8', 'replace'))}")
    entries = parsed.get("Events") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        return Document((), f"no list of events in {_shown(body[:60].decode('utf-8', 'replace'))}")
    problem = "" if _is_number(parsed.get("DocumentIncarnation")) else "events without a DocumentIncarnation"
    events = []
    for entry in entries:
        event = _event(entry)
        if event is None:
            problem = f"an event that cannot be read: {_shown(entry)}"
        else:
            events.append(event)
    return Document(tuple(events), problem)


def _event(entry: Any) -> ScheduledEvent | None:
    """Return the event, or None if the entry names neither a type nor machines."""
    if not isinstance(entry, dict):
        return None
    kind, resources = _word(entry.get("EventType")), _resources(entry.get("Resources"))
    if not kind and not resources:
        return None
    status = _word(entry.get("EventStatus"))
    not_before = parse_date(entry.get("NotBefore"))
    # `NotBefore` is blank once the event has started. So for an unknown status, the date decides.
    started = status.casefold() == "started" or (status.casefold() != "scheduled" and not_before is None)
    return ScheduledEvent(_word(entry.get("EventId")), kind, resources, started, not_before, _words(entry))


def _resources(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        return ()
    return tuple(one.strip() for one in value)


def _word(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _words(entry: dict[str, Any]) -> str:
    """Return a line such as "Preempt, Scheduled, not before Mon, 19 Sep 2016 18:29:47 GMT; by Platform: Spot eviction"."""
    line = f"{_shown(entry.get('EventType'))}, {_shown(entry.get('EventStatus'))}"
    if date := entry.get("NotBefore"):
        line += f", not before {_shown(date)}"
    if source := entry.get("EventSource"):
        line += f"; by {_shown(source)}"
    if description := entry.get("Description"):
        line += f": {_shown(description)}"
    return line


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """Return a server's value as text for one line."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"  # its repr could be as deep as the parser went
    return ascii(value)[:80].strip("'")
