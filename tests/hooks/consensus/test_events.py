"""Calls on the wire: what one rank has said is what the others read, and nothing else is taken for a call."""

from __future__ import annotations

import json

import pytest

from spotguard.hooks.consensus import events
from spotguard.hooks.consensus.events import (
    BackgroundEvent,
    BoundaryEvent,
    CarriedEvent,
    DamagedEvent,
    FailedEvent,
    LogEvent,
    ManualEvent,
    NoticeEvent,
    RevoteEvent,
    UnknownEvent,
    WithdrawnEvent,
)
from spotguard.hooks.ipc import typed_json

NOTICE = NoticeEvent("i-1", "interruption", "aws", 119.5, "m0", 120.0)


@pytest.mark.parametrize(
    "call",
    [
        NOTICE,
        NoticeEvent("d", "drill", "you", 30, "m1", 30, drill=True),
        WithdrawnEvent("i-1"),
        BackgroundEvent("every 60 s"),
        ManualEvent(7),
        BoundaryEvent(3, "a buffer moved"),
        FailedEvent(3, 1, "denied"),
        DamagedEvent("000000020-0001-0000", "an object is missing"),
        CarriedEvent(
            4, (NOTICE, NoticeEvent("b", "drill", "you", 30.0, "m1", 30.0, was=3)), 2, "notice", True
        ),
        CarriedEvent(0),
        RevoteEvent(2),
    ],
)
def test_each_event_is_decoded_as_it_was_encoded(call: LogEvent) -> None:
    """Every kind, with all that it says."""
    assert events.decode(events.encode(call, 1, 2)) == call


def test_no_two_entries_are_the_same() -> None:
    """A rank knows its own entry again, and takes nobody else's for it."""
    entries = {events.encode(NOTICE, rank, number) for rank in range(2) for number in range(3)}
    assert len(entries) == 6


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"call": "coffee"}',
        b'{"call": ["notice"]}',
        b'{"call": "manual"}',
        b'{"call": "manual", "step": true}',
        b'{"call": "manual", "step": 1.5}',
        b'{"call": "withdrawn", "id": 3}',
        b'{"call": "carried", "heard": 1}',
        b'{"call": "carried", "heard": 1, "notices": [3]}',
        b'{"call": "carried", "heard": 1, "notices": [{"id": "a"}]}',
        json.dumps(
            {"call": "notice", **typed_json.decode(events.encode(NOTICE, 0, 0)), "window": 1e999}
        ).encode(),
        b"[" * 100_000,
    ],
)
def test_an_unreadable_event_is_unknown_with_a_reason(raw: bytes) -> None:
    """It takes its place in the log, and says why it is nothing else."""
    call = events.decode(raw)
    assert isinstance(call, UnknownEvent)
    assert call.why


def test_unknown_fields_are_skipped_and_missing_ones_refused() -> None:
    unknown = events.decode(b'{"call": "manual"}')
    assert isinstance(unknown, UnknownEvent)
    assert unknown.why == "ManualEvent lacks step"
    assert events.decode(b'{"call": "manual", "step": 4, "mood": "good"}') == ManualEvent(4)
