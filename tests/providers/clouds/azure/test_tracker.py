"""What events mean for one machine: kinds, severities and deadlines, and one warning that stays one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.azure.document import ScheduledEvent, parse_document
from spotguard.providers.clouds.azure.tracker import EventTracker
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.cases import cases
from tests.providers.clouds.azure.test_document import ENTRIES, document, entry

NOW, WALL = 1000.0, 1795168800.0
OURS = frozenset({"vm_1"})


def event(type: str = "Preempt", left: float | None = 30.0, **fields: Any) -> ScheduledEvent:
    """An event of this machine that may begin in so many seconds."""
    not_before = None if left is None else WALL + left
    whole: dict[str, Any] = {"id": "A", "resources": ("vm_1",), "started": False, "words": f"{type} …"}
    return ScheduledEvent(type=type, not_before=not_before, **(whole | fields))


def read(
    book: EventTracker,
    *events: ScheduledEvent,
    names: Iterable[str] = OURS,
    now: float = NOW,
    wall: float | None = None,
    whole: bool = True,
) -> tuple[Notice, ...]:
    """What stands, at a time by which both clocks have moved on alike."""
    return book.read(events, frozenset(names), now, WALL + now - NOW if wall is None else wall, whole=whole)


def the_notice(*events: ScheduledEvent, **how: Any) -> Notice:
    (notice,) = read(EventTracker(), *events, **how)
    return notice


# --- what each means ----------------------------------------------------------------------------------------


@cases(
    "type, left, kind, severity, seconds, window",
    [
        ("Preempt", 30, NoticeKind.PREEMPT, Severity.TERMINAL, 30, 30),
        ("Preempt", 8, NoticeKind.PREEMPT, Severity.TERMINAL, 8, 30),
        ("Preempt", 90, NoticeKind.PREEMPT, Severity.TERMINAL, 30, 30),
        ("Preempt", -3, NoticeKind.PREEMPT, Severity.TERMINAL, 0, 30),
        ("Preempt", None, NoticeKind.PREEMPT, Severity.TERMINAL, 30, 30),
        (" preempt".strip().upper(), 30, NoticeKind.PREEMPT, Severity.TERMINAL, 30, 30),
        ("Terminate", 300, NoticeKind.TERMINATE, Severity.LATER, 300, 300),
        ("Reboot", 900, NoticeKind.REBOOT, Severity.LATER, 900, 900),
        ("Reboot", 7 * 86400, NoticeKind.REBOOT, Severity.LATER, 7 * 86400, 900),
        ("Reboot", -60, NoticeKind.REBOOT, Severity.LATER, 0, 900),
        ("Redeploy", 600, NoticeKind.REDEPLOY, Severity.LATER, 600, 600),
        ("Redeploy", None, NoticeKind.REDEPLOY, Severity.TERMINAL, 30, 30),
        ("Freeze", 900, NoticeKind.FREEZE, Severity.ADVISORY, 900, 900),
        ("Freeze", None, NoticeKind.FREEZE, Severity.ADVISORY, 900, 900),
        ("SpotRebalance", 60, NoticeKind.REBALANCE, Severity.ADVISORY, 60, 30),
        ("Defrag", 900, NoticeKind.UNKNOWN, Severity.TERMINAL, 30, 30),
        ("Defrag", None, NoticeKind.UNKNOWN, Severity.TERMINAL, 30, 30),
        ("", 5, NoticeKind.UNKNOWN, Severity.TERMINAL, 5, 30),
    ],
)
def test_each_type_has_its_kind_its_severity_and_its_time(
    type: str, left: float | None, kind: NoticeKind, severity: Severity, seconds: float, window: float
) -> None:
    """Terminal ones never have longer than the documented warning; later ones may be days off."""
    notice = the_notice(event(type, left))
    assert (notice.kind, notice.severity, notice.window) == (kind, severity, window)
    assert notice.deadline == NOW + seconds
    assert notice.seen_at == NOW
    assert notice.source == "azure scheduledevents"


@pytest.mark.parametrize("type", ["Preempt", "Terminate", "Reboot", "Redeploy", "Defrag"])
def test_an_event_that_has_begun_ends_the_machine_now(type: str) -> None:
    """Also where no warning came before it: a failed host is a `Reboot` that has begun."""
    notice = the_notice(event(type, None, started=True))
    assert (notice.severity, notice.deadline, notice.window) == (Severity.TERMINAL, NOW, 30)


def test_a_freeze_that_has_begun_is_still_no_end() -> None:
    """Nothing is lost by it."""
    assert the_notice(event("Freeze", None, started=True)).severity is Severity.ADVISORY


def test_a_guess_is_named_in_the_detail() -> None:
    """A person reading the log must see it."""
    assert "unknown to this program" in the_notice(event("Defrag")).detail
    assert "no date" in the_notice(event("Reboot", None)).detail
    assert "may be another machine's" in the_notice(event(), names=()).detail
    assert the_notice(event()).detail == "Preempt …"


@pytest.mark.parametrize(("off", "left"), [(60, 0), (-60, 30), (3600, 0), (-3600, 30), (10, 20)])
def test_s18_a_clock_that_is_off_makes_no_window_longer_than_azure_gives(off: float, left: float) -> None:
    """By a clock that is ahead the time seems over, by one that is behind it seems long."""
    assert the_notice(event(left=30), wall=WALL + off).deadline == NOW + left


# --- whose it is --------------------------------------------------------------------------------------------


def test_s13_others_events_are_nothing_to_us() -> None:
    """Among many, ours is found, in any case."""
    book = EventTracker()
    others = [event(id=str(number), resources=(f"vm_{number}",)) for number in range(2, 40)]
    assert read(book, *others) == ()
    many = event(id="many", resources=("vm_9", "VM_1", "vm_7"))
    (notice,) = read(book, *others, many)
    assert notice.id == "azure/many"


def test_without_a_name_every_event_counts_until_the_name_is_known() -> None:
    """A notice too many costs a save; one too few costs the work."""
    book = EventTracker()
    other = event(resources=("vm_2",))
    assert len(read(book, other, names=())) == 1
    assert read(book, other) == ()


# --- over time ----------------------------------------------------------------------------------------------


def test_s14_a_notice_that_is_read_again_is_the_same_value() -> None:
    """However long it is read, and when a step of the clock makes its time seem later."""
    book = EventTracker()
    (first,) = read(book, event())
    for later in (1.0, 20.0, 29.9):
        (again,) = read(book, event(), now=NOW + later)
        assert again is first
    (again,) = read(book, event(), wall=WALL - 3600)
    assert again is first


def test_s14_a_deadline_only_moves_earlier() -> None:
    """Azure may begin sooner than it said, and by a clock put right it may be sooner too."""
    book = EventTracker()
    read(book, event(left=30))
    (sooner,) = read(book, event(left=10))
    assert (sooner.deadline, sooner.seen_at) == (NOW + 10, NOW)
    (later,) = read(book, event(left=25), now=NOW + 1, wall=WALL + 1)
    assert later is sooner


def test_a_far_event_may_be_put_off() -> None:
    """By more than a clock's error; under its own id, it is the same event at another time."""
    book = EventTracker()
    (first,) = read(book, event("Reboot", 3600))
    assert read(book, event("Reboot", 3650)) == (first,)
    (later,) = read(book, event("Reboot", 7200), now=NOW + 1, wall=WALL)
    assert (later.id, later.deadline, later.seen_at) == (first.id, NOW + 7201, NOW + 1)


def test_s14_what_leaves_the_list_stands_no_more() -> None:
    """Called off before it begins, or over after it."""
    book = EventTracker()
    read(book, event())
    assert read(book) == ()
    read(book, event(started=True))
    assert read(book) == ()


def test_s14_a_later_notice_that_begins_is_the_same_notice_and_terminal() -> None:
    """As a terminal one it was first seen when it began."""
    book = EventTracker()
    (later,) = read(book, event("Reboot", 900))
    (begun,) = read(book, event("Reboot", None, started=True), now=NOW + 600)
    assert (later.severity, begun.severity) == (Severity.LATER, Severity.TERMINAL)
    assert begun.id == later.id
    assert begun.deadline == begun.seen_at == NOW + 600
    (again,) = read(book, event("Reboot", 300), now=NOW + 601)
    assert again is begun


@pytest.mark.parametrize("left", [30.0, None])
def test_s14_an_event_under_another_id_is_the_same_notice(left: float | None) -> None:
    """The official mock server numbers it anew when it begins; the order and case of names mean nothing."""
    book = EventTracker()
    (first,) = read(book, event(resources=("vm_1", "vm_2")))
    mutated = event(left=left, id="B", started=left is None, resources=("VM_2", "vm_1"))
    (again,) = read(book, mutated, now=NOW + 5)
    assert again.id == first.id == "azure/A"
    assert again.deadline <= first.deadline
    assert book.event("azure/A") is mutated
    assert read(book) == ()


def test_an_event_that_replaces_another_much_later_is_a_new_notice() -> None:
    """The first was called off; its deadline is not the new one's."""
    book = EventTracker()
    read(book, event("Reboot", 900))
    (new,) = read(book, event("Reboot", 90_000, id="B"))
    assert (new.id, new.deadline) == ("azure/B", NOW + 90_000)


def test_two_events_at_a_time_are_two() -> None:
    """Of one type and about the same machine, each with its own id."""
    book = EventTracker()
    assert len(read(book, event("Reboot", 900), event("Reboot", 9000, id="B"))) == 2
    (left,) = read(book, event("Reboot", 9000, id="B"))
    assert left.id == "azure/B"


def test_events_without_ids_are_told_apart_by_type_and_machines() -> None:
    """And the same one is the same."""
    book = EventTracker()
    first = read(book, event(id=""), event("Freeze", id=""))
    again = read(book, event(id=""), event("Freeze", id=""), now=NOW + 1)
    assert len({notice.id for notice in first}) == 2
    assert again == first


def test_one_id_that_comes_twice_is_one_notice_with_the_earlier_end() -> None:
    """Nobody does so; nothing is lost by it."""
    (notice,) = read(EventTracker(), event(left=20), event(left=10))
    assert notice.deadline == NOW + 10


def test_an_unreadable_document_ends_no_event() -> None:
    """What is missing may be what could not be read."""
    book = EventTracker()
    (first,) = read(book, event())
    assert read(book, whole=False) == (first,)
    assert read(book, event(started=True, id="B"), whole=False)[0].id == first.id
    assert read(book) == ()


def test_the_same_words_are_the_same_notice_for_another_process() -> None:
    """The id is Azure's, whoever reads it, and fit for a line."""
    assert the_notice(event()).id == the_notice(event(), now=5.0).id == "azure/A"
    long = the_notice(event(id="\n" * 500)).id
    assert long.isprintable()
    assert len(long) < 100


@given(st.lists(st.lists(ENTRIES, max_size=4), min_size=1, max_size=4), st.booleans(), st.floats(-1e9, 1e9))
def test_any_documents_one_after_another(
    documents: list[list[dict[str, Any]]], named: bool, skew: float
) -> None:
    """Never an exception; every notice is sound; ours that is the end is never missing."""
    book = EventTracker()
    for look, entries in enumerate(documents):
        mine = entry(EventId="mine", Resources=["vm_9", "VM_1"], NotBefore="")
        found = parse_document(document(*entries, mine))
        notices = read(
            book,
            *found.events,
            names=OURS if named else (),
            now=NOW + look,
            wall=WALL + look + skew,
            whole=not found.problem,
        )
        assert len({notice.id for notice in notices}) == len(notices)
        assert any(notice.severity is Severity.TERMINAL for notice in notices)
        for notice in notices:
            assert notice.id.isprintable()
            assert notice.detail.isprintable()
            assert notice.seen_at <= NOW + look
            assert notice.deadline >= notice.seen_at
            if notice.severity is Severity.TERMINAL:
                assert notice.deadline <= notice.seen_at + notice.window


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(["Preempt", "Defrag"]))
def test_no_date_makes_an_end_safe(instant: datetime, type: str) -> None:
    """Whenever Azure says: within the shortest warning."""
    at = format_datetime(instant, usegmt=True)
    found = parse_document(document(entry(EventType=type, NotBefore=at, Resources=["vm_1"])))
    (notice,) = read(EventTracker(), *found.events)
    assert NOW <= notice.deadline <= NOW + 30


def test_an_event_that_has_not_begun_long_after_its_time_is_an_advisory() -> None:
    """It may begin at any moment, or our clock is ahead: each run would end at its start. Seen before its time it stays
    what it was; when it begins it is the end; and a clock that is put right makes it what it is."""
    past = the_notice(event("Reboot", left=-181))
    assert past.severity is Severity.ADVISORY
    assert past.detail.endswith("that is past, so it may begin at any moment")
    assert the_notice(event("Reboot", left=-179)).severity is Severity.LATER
    assert the_notice(event(left=-600)).severity is Severity.TERMINAL, "an eviction is not waited for"
    book = EventTracker()
    (first,) = read(book, event("Reboot", left=900))
    assert read(book, event("Reboot", left=900), wall=WALL + 3600) == (first,)
    book = EventTracker()
    assert read(book, event("Reboot", left=900), wall=WALL + 3600)[0].severity is Severity.ADVISORY
    (right,) = read(book, event("Reboot", left=900), now=NOW + 10)
    assert (right.severity, right.deadline) == (Severity.LATER, NOW + 900)
    book = EventTracker()
    read(book, event("Reboot", left=-600))
    (begun,) = read(book, event("Reboot", left=None, started=True), now=NOW + 10)
    assert (begun.severity, begun.deadline) == (Severity.TERMINAL, NOW + 10)


def test_a_milder_type_of_the_same_event_changes_nothing() -> None:
    """A type that turns into another under one id."""
    book = EventTracker()
    (first,) = read(book, event())
    (again,) = read(book, replace(event("Freeze"), id="A"))
    assert again is first
