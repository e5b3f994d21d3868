"""Any bytes at all: never an exception, and never "no event" where there may be one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.azure.document import Document, ScheduledEvent, parse_document
from tests.providers.clouds.anything import DATES, JSON

#: Everything a document's entry has, each right, wrong or missing.
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "EventId": st.uuids().map(str) | JSON,
        "EventType": st.sampled_from(["Preempt", "Freeze", "Reboot", "Defrag"]) | JSON,
        "Resources": st.lists(st.sampled_from(["vm_1", "vm_2"])) | JSON,
        "EventStatus": st.sampled_from(["Scheduled", "Started"]) | JSON,
        "NotBefore": DATES.map(datetime.isoformat) | st.text() | JSON,
        "Description": JSON,
        "EventSource": JSON,
        "DurationInSeconds": JSON,
    },
)


def document(*entries: object, incarnation: object = 1) -> bytes:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": entries}).encode()


def entry(**fields: object) -> dict[str, object]:
    """An eviction as Azure writes it, but for these fields."""
    whole: dict[str, object] = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["WestNO_0"],
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "Spot eviction",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return whole | fields


def the_event(body: bytes) -> ScheduledEvent:
    found = parse_document(body)
    assert found.problem == ""
    (event,) = found.events
    return event


def check_sound(found: Document) -> None:
    """What holds of every outcome."""
    assert found.problem.isprintable()
    for event in found.events:
        assert event.words.isprintable()
        assert len(event.words) < 500


@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_raise_and_none_pass_for_no_events(data: bytes) -> None:
    """Random bytes are no document, and that is said."""
    found = parse_document(data)
    check_sound(found)
    assert (found.events, bool(found.problem)) == ((), True)


@given(JSON)
def test_no_json_raises_and_none_passes_for_no_events(value: Any) -> None:
    """JSON without a list of events is no document."""
    found = parse_document(json.dumps(value).encode())
    check_sound(found)
    assert found.problem


@given(st.lists(ENTRIES | JSON, max_size=4), JSON)
def test_an_entry_is_an_event_or_a_problem(entries: list[Any], incarnation: Any) -> None:
    """None is passed over: with n entries there are n events, or it is said that there is more."""
    found = parse_document(document(*entries, incarnation=incarnation))
    check_sound(found)
    assert len(found.events) == len(entries) or found.problem


@given(ENTRIES, ENTRIES | JSON)
def test_an_event_that_names_this_machine_is_its_own(one: dict[str, Any], other: Any) -> None:
    """An event that names this machine is never somebody else's, whatever stands beside it."""
    named = {**one, "EventType": "Preempt", "Resources": ["vm_2", "VM_1"]}
    found = parse_document(document(other, named))
    assert any(event.concerns(frozenset({"vm_1"})) for event in found.events)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"Events":' * 5_000,
        b'{"Events": [1e999999]}',
        b'{"DocumentIncarnation": 1, "Events": [' + b"[" * 900 + b"]" * 900 + b"]}",
    ],
)
def test_json_made_to_hurt_is_a_problem(data: bytes) -> None:
    """Nesting and digits beyond Python's limits."""
    found = parse_document(data)
    check_sound(found)
    assert (found.events, bool(found.problem)) == ((), True)


def test_an_event_as_azure_writes_it() -> None:
    """All of it."""
    assert the_event(document(entry())) == ScheduledEvent(
        id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        type="Preempt",
        resources=("WestNO_0",),
        started=False,
        not_before=datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC).timestamp(),
        words="Preempt, Scheduled, not before Mon, 19 Sep 2016 18:29:47 GMT; by Platform: Spot eviction",
    )


@pytest.mark.parametrize(
    ("status", "not_before", "started"),
    [
        ("Scheduled", "Mon, 19 Sep 2016 18:29:47 GMT", False),
        ("Scheduled", "", False),
        ("Started", "", True),
        ("Started", "Mon, 19 Sep 2016 18:29:47 GMT", True),
        (" started ", "", True),
        ("Approved", "Mon, 19 Sep 2016 18:29:47 GMT", False),
        ("Approved", "", True),
        (None, None, True),
    ],
)
def test_an_event_has_begun_where_it_says_so_or_nothing_else_can_be_meant(
    status: object, not_before: object, started: bool
) -> None:
    """`NotBefore` is blank from the start on."""
    assert the_event(document(entry(EventStatus=status, NotBefore=not_before))).started is started


@pytest.mark.parametrize(
    ("resources", "ours", "alone"),
    [
        (["WestNO_0"], True, True),
        (["WESTNO_0"], True, True),
        (["WestNO_1", "westno_0"], True, False),
        (["WestNO_1"], False, False),
        (["WestNO_00", "WestNO"], False, False),
        ([], True, False),
        (None, True, False),
        ("WestNO_1", True, False),
        (["WestNO_1", 7], True, False),
        ([{"name": "WestNO_1"}], True, False),
        ([""], True, False),
    ],
)
def test_the_resources_of_an_event_decide_whose_it_is(resources: object, ours: bool, alone: bool) -> None:
    """Case means nothing; where nobody can be read, it may be ours, and is never known to be ours alone."""
    event = the_event(document(entry(Resources=resources)))
    names = frozenset({"westno_0"})
    assert (event.concerns(names), event.is_only_about(names)) == (ours, alone)


def test_a_machine_without_a_name_takes_every_event_for_its_own() -> None:
    """And none for its own alone."""
    event = the_event(document(entry()))
    assert event.concerns(frozenset())
    assert not event.is_only_about(frozenset())


@pytest.mark.parametrize(
    "body",
    [
        document(entry(), "Preempt"),
        document(entry(), None),
        document(entry(), {}),
        document(entry(), {"EventId": "1", "EventStatus": "Scheduled"}),
        document(entry(), incarnation=None),
        b'{"Events": [{"EventType": "Preempt", "Resources": ["WestNO_0"]}]}',
    ],
)
def test_an_unreadable_event_is_reported_and_the_others_stand(body: bytes) -> None:
    """An eviction beside a riddle is an eviction."""
    found = parse_document(body)
    assert [event.type for event in found.events] == ["Preempt"]
    assert found.problem


def test_fields_that_nobody_knows_are_survived() -> None:
    """They come with versions."""
    assert the_event(document(entry(Urgency={"a": [1]}, ResourceType="Disk"))).type == "Preempt"
