"""Azure's document of Scheduled Events, read: any bytes become events, or a line that says why not.

Pure, and total: no bytes raise, and nothing that may be an event is passed over in silence (`Document.problem`).
Written from the page "Scheduled Events for Linux VMs", and from what differs in the field: ISO dates, other ids for
the same event once it has started (both: Azure-Samples/scheduled-events-mock-server).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from ...dates import parse_iso


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """One entry of the list."""

    #: Azure's own; "" where there is none.
    id: str
    #: As Azure writes it: "Preempt".
    type: str
    #: The machines that it is about, as they are written. None where that cannot be read: it may be about any.
    resources: tuple[str, ...]
    started: bool
    #: Unix seconds before which it does not start. None: there is no date, or none that can be read.
    not_before: float | None
    #: What Azure says of it, in one line.
    words: str

    def concerns(self, names: frozenset[str]) -> bool:
        """Whether it may be about the machine of these names (in lower case). Where nothing is known, it may.

        A notice that is somebody else's costs a save and a start; one that is taken for somebody else's costs the work.
        """
        if not names or not self.resources:
            return True
        return any(resource.casefold() in names for resource in self.resources)

    def is_only_about(self, names: frozenset[str]) -> bool:
        """Whether this machine is known to be the only one that it is about."""
        return len(self.resources) == 1 and self.resources[0].casefold() in names

    def is_like(self, other: ScheduledEvent) -> bool:
        """Whether it is of the same type and about the same machines."""
        return self._content() == other._content()

    def _content(self) -> tuple[str, frozenset[str]]:
        return self.type.casefold(), frozenset(resource.casefold() for resource in self.resources)


@dataclass(frozen=True, slots=True)
class Document:
    """What could be read."""

    events: tuple[ScheduledEvent, ...]
    #: What could not, in one line; then an event that is not here may still stand. "" when all is well.
    problem: str = ""


def parse_document(body: bytes) -> Document:
    """The events of an answer.

    `DocumentIncarnation` is only looked for, not at: the bytes themselves tell better whether anything changed.
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not text, or nested to hurt
        return Document((), f"no JSON in {_shown(body[:60].decode('utf-8', 'replace'))}")
    entries = said.get("Events") if isinstance(said, dict) else None
    if not isinstance(entries, list):
        return Document((), f"no list of events in {_shown(body[:60].decode('utf-8', 'replace'))}")
    problem = "" if _is_number(said.get("DocumentIncarnation")) else "events without a DocumentIncarnation"
    events = []
    for entry in entries:
        event = _event(entry)
        if event is None:
            problem = f"an event that cannot be read: {_shown(entry)}"
        else:
            events.append(event)
    return Document(tuple(events), problem)


def parse_date(text: object) -> float | None:
    """Unix seconds of `Mon, 19 Sep 2016 18:29:47 GMT`, or of an ISO form (without a zone: UTC); else None."""
    if not isinstance(text, str):
        return None
    if (iso := parse_iso(text)) is not None:
        return iso
    try:
        instant = parsedate_to_datetime(text.strip())
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # not of this form either
        return None


def _event(entry: Any) -> ScheduledEvent | None:
    """None for what says neither what happens nor to whom."""
    if not isinstance(entry, dict):
        return None
    kind, resources = _word(entry.get("EventType")), _resources(entry.get("Resources"))
    if not kind and not resources:
        return None
    status = _word(entry.get("EventStatus"))
    not_before = parse_date(entry.get("NotBefore"))
    # `NotBefore` is blank from the start on, so where the status is none that we know, the date tells.
    started = status.casefold() == "started" or (status.casefold() != "scheduled" and not_before is None)
    return ScheduledEvent(_word(entry.get("EventId")), kind, resources, started, not_before, _words(entry))


def _resources(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        return ()
    return tuple(one.strip() for one in value)


def _word(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _words(entry: dict[str, Any]) -> str:
    """Such as "Preempt, Scheduled, not before Mon, 19 Sep 2016 18:29:47 GMT; by Platform: Spot eviction"."""
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
    """A server's words, fit for one line."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"  # whose own repr may be as deep as the parser went
    return ascii(value)[:80].strip("'")
