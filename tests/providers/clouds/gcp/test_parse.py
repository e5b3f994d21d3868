"""Any bytes at all, any JSON, any date: never an exception, and never "all is well" where it was not said."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.gcp.maintenance import parse_word
from spotguard.providers.clouds.gcp.preempted import parse_preempted, parse_promise
from spotguard.providers.clouds.gcp.times import parse_duration, parse_instant
from spotguard.providers.clouds.gcp.upcoming import parse_upcoming
from spotguard.providers.notice import Notice, Severity
from spotguard.providers.simulator.gcp.upcoming import NOTHING, SPELLINGS, planned
from tests.cases import cases
from tests.fakes.clock import ManualClock
from tests.providers.clouds.anything import DATES, JSON

STATUSES = st.sampled_from([200, 404, 500, 503])
#: Names and words as the key has them, mixed with any others.
FIELDS = st.dictionaries(
    st.sampled_from(
        ("type", "maintenanceStatus", "maintenance_status", "windowStartTime", "window_start_time")
    )
    | st.sampled_from(("startTime", "windowEndTime", "window_end_time", "maintenanceReasons", "error"))
    | st.text(),
    st.sampled_from(["SCHEDULED", "UNSCHEDULED", "PENDING", "ONGOING", "COMPLETE", "NONE"])
    | DATES.map(datetime.isoformat)
    | JSON,
    max_size=8,
)


def upcoming(value: Any, status: int = 200) -> tuple[Notice, ...] | None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_upcoming(status, body, ManualClock())


def the_notice(found: tuple[Notice, ...] | None) -> Notice:
    assert found is not None
    (notice,) = found
    return notice


def check_sound(found: tuple[Notice, ...] | None) -> None:
    """What holds of every outcome."""
    for notice in found or ():
        assert notice.seen_at <= notice.deadline <= notice.seen_at + 100 * 24 * 3600
        assert notice.severity in (Severity.LATER, Severity.ADVISORY)
        assert notice.id.isprintable()
        assert notice.detail.isprintable()
        assert len(notice.id) < 200


# --- preempted ----------------------------------------------------------------------------------------------


@given(st.binary() | st.text().map(str.encode) | st.sampled_from([b"TRUE", b"FALSE", b"true", b" FALSE\n"]))
def test_only_two_words_are_known(body: bytes) -> None:
    """One warns in any case, the other calms as it is written by the service alone."""
    found = parse_preempted(body)
    assert (found is True) == (body.strip().upper() == b"TRUE")
    assert (found is False) == (body.strip() == b"FALSE")


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_folder_promises_by_chance(body: bytes) -> None:
    """Nor raises."""
    assert parse_promise(body) is None or b"uration" in body


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"preemptionNoticeDuration": "120s"}, 120),
        ({"preemption-notice-duration": 120}, 120),
        ({"preemption_notice_duration": {"seconds": "120", "nanos": 0}}, 120),
        ({"preemptible": "TRUE"}, None),
        ({"preemptionNoticeDuration": {}}, None),
        ({"preemptionNoticeDuration": True}, None),
        ({"preemptionNoticeDuration": -5}, None),
        ([], None),
    ],
)
def test_a_notice_duration_in_each_spelling(said: Any, seconds: float | None) -> None:
    assert parse_promise(json.dumps(said).encode()) == seconds


# --- upcoming maintenance -------------------------------------------------------------------------------------


#: In bytes; of JSON's blanks any may stand in an empty object.
NOTHING_PLANNED = re.compile(rb'NONE|"NONE"|\{[ \t\n\r]*\}')


@given(st.binary() | st.text().map(str.encode), STATUSES)
def test_no_bytes_raise_and_none_pass_for_nothing(body: bytes, status: int) -> None:
    """Random bytes say nothing of maintenance, and only a missing key is none."""
    found = upcoming(body, status)
    check_sound(found)
    if status != 404 and not NOTHING_PLANNED.fullmatch(body.strip()):
        assert found != ()


@given(JSON | FIELDS | st.dictionaries(st.text(), FIELDS, min_size=1, max_size=1), STATUSES)
def test_no_json_raises(value: Any, status: int) -> None:
    check_sound(upcoming(value, status))


@given(FIELDS, STATUSES)
def test_planned_maintenance_is_never_nothing(fields: dict[str, Any], status: int) -> None:
    """Whatever stands beside it, and however far off the clock is: only its own words say that it is over."""
    said = {**fields, "type": "SCHEDULED", "maintenanceStatus": "PENDING"}
    for name in [
        name for name in said if re.sub("[^a-z]", "", name.lower()) in ("type", "maintenancestatus")
    ]:
        if name not in ("type", "maintenanceStatus"):
            del said[name]
    the_notice(upcoming(said, status))


@given(DATES)
def test_every_date_of_the_calendar_is_read(instant: datetime) -> None:
    """With any zone, or without: then it is UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    assert parse_instant(instant.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-3)
    found = upcoming({"type": "SCHEDULED", "windowStartTime": instant.isoformat()})
    check_sound(found)
    past = ManualClock().time() - aware.timestamp() > 180
    assert the_notice(found).severity is (Severity.ADVISORY if past else Severity.LATER)


@given(JSON)
def test_no_time_raises(value: Any) -> None:
    assert parse_instant(value) is None or isinstance(value, str)
    seconds = parse_duration(value)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 10_000, b'{"type":' * 5_000, b'{"type": 1e999999}'])
def test_json_made_to_hurt_is_no_calm(body: bytes) -> None:
    """Nesting and digits beyond Python's limits."""
    assert upcoming(body) is None


@cases("spelling", SPELLINGS)
@cases("ahead, left", [(7 * 86400, 7 * 86400), (60, 60), (0, 0), (-60, 0), (200 * 86400, 8640000)])
def test_s11_planned_maintenance_in_every_spelling(spelling: str, ahead: float, left: float) -> None:
    """The start of its window is the deadline; no word moves it further away than machine types are told ahead."""
    clock = ManualClock()
    notice = the_notice(upcoming(planned(clock.time() + ahead, spelling)))
    assert (notice.severity, notice.deadline) == (Severity.LATER, clock.monotonic() + left)


@pytest.mark.parametrize("spelling", NOTHING)
def test_s11_no_maintenance_in_every_spelling(spelling: str) -> None:
    leaf = NOTHING[spelling]
    assert (upcoming(leaf.body, leaf.status) if leaf else upcoming(b"<html>", 404)) == ()


@pytest.mark.parametrize(
    "said",
    [
        {"type": "NONE"},
        {"maintenanceStatus": "COMPLETE", "type": "SCHEDULED"},
        {"Upcoming maintenance": {"type": "NONE"}},
    ],
)
def test_a_maintenance_that_is_over_is_over(said: Any) -> None:
    """Under 200 alone."""
    assert upcoming(said) == ()
    assert upcoming(said, 503) is None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", 200),
        (b"null", 200),
        (b"[]", 200),
        (b"NONE", 503),
        (b"{}", 500),
        (b'{"error": "internal"}', 503),
        (b'{"error": ""}', 200),
        (b'{"error": {"code": 500}}', 200),
        (b'{"maintenance_reasons": []}', 200),
        (b"<html>503</html>", 503),
    ],
)
def test_an_answer_with_an_unknown_meaning_is_blindness(said: bytes, status: int) -> None:
    assert upcoming(said, status) is None


def test_maintenance_that_is_under_way_is_now() -> None:
    """Also where somebody began it before its time."""
    clock = ManualClock()
    notice = the_notice(upcoming(planned(clock.time() + 86400, "camel", "ONGOING")))
    assert notice.deadline == clock.monotonic()


def test_maintenance_without_a_readable_time_is_advice() -> None:
    """Nobody knows when; the last hour has a key of its own."""
    notice = the_notice(upcoming({"type": "UNSCHEDULED", "windowStartTime": "soon"}))
    assert (notice.severity, notice.detail) == (Severity.ADVISORY, "UNSCHEDULED at soon: not a time")


def test_maintenance_whose_window_is_long_over_is_advice() -> None:
    """By an hour, for a clock may be off. A value that was left behind ends no run; what is under way does."""
    clock = ManualClock()
    past = clock.time() - 6 * 3600
    notice = the_notice(upcoming(planned(past, "snake")))
    assert notice.severity is Severity.ADVISORY
    assert (
        notice.detail == "SCHEDULED PENDING at 2026-11-20T04:00:00Z: its window is over, and it never began"
    )
    assert the_notice(upcoming(planned(past, "snake", "ONGOING"))).severity is Severity.LATER


def test_the_same_maintenance_is_the_same_notice() -> None:
    """In any spelling and state, read by any process; another time is another."""
    clock = ManualClock()
    start = clock.time() + 7200
    ids = {
        the_notice(upcoming(planned(start, s, state))).id
        for s in SPELLINGS
        for state in ("PENDING", "ONGOING")
    }
    assert len(ids) == 1
    assert the_notice(upcoming(planned(start + 60, "snake"))).id not in ids


# --- words --------------------------------------------------------------------------------------------------


@given(st.binary() | st.text().map(str.encode))
def test_a_word_is_in_capitals_or_none(body: bytes) -> None:
    word = parse_word(body)
    assert word == "" or (word.encode() == body.strip() and word.isascii() and word.upper() == word)
