"""Any bytes, any JSON, any date: the parsers of recommendations and scheduled events raise nothing and hide nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.aws.events import parse_rebalance, parse_scheduled
from spotguard.providers.clouds.aws.source import STALE
from spotguard.providers.dates import parse_date
from spotguard.providers.health import Sight
from spotguard.providers.notice import Severity, Sighting
from spotguard.providers.simulator.aws.maintenance import CODES, date
from tests.fakes.clock import ManualClock
from tests.providers.clouds.anything import JSON

INSTANTS = st.datetimes(timezones=st.just(UTC)).map(lambda instant: instant.replace(microsecond=0))
DATES = INSTANTS.map(lambda instant: date(instant.timestamp())) | INSTANTS.map(datetime.isoformat)
CODE = st.sampled_from([*CODES, "instance-teleport", " System-Reboot "]) | st.text()
STATE = st.sampled_from(["active", "completed", "canceled", "Active", "pending", ""]) | JSON
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "Code": CODE | JSON,
        "NotBefore": DATES | st.text() | JSON,
        "State": STATE,
        "EventId": st.text() | JSON,
        "Description": st.text() | JSON,
    },
)
YEAR = 366 * 86400


def scheduled(value: Any) -> Sighting:
    return parse_scheduled(json.dumps(value).encode(), ManualClock())


def check_sound(sighting: Sighting) -> None:
    """What holds of every outcome."""
    assert sighting.health.detail.isprintable()
    if not sighting.health.seeing:
        assert (sighting.health.sight, sighting.health.reason) == (Sight.BLIND, "garbage")
        assert sighting.health.advice
    for notice in sighting.notices:
        assert notice.severity is not Severity.TERMINAL
        assert notice.seen_at <= notice.deadline <= notice.seen_at + YEAR
        assert notice.id.isascii()
        assert notice.id.isprintable()
        assert len(notice.id) < 150
        assert notice.detail.isprintable()


@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_body_raises_and_none_passes_for_nothing(data: bytes) -> None:
    """Only an empty list says that there is no event, and nothing says that there is no recommendation."""
    for sighting in (parse_scheduled(data, ManualClock()), parse_rebalance(data, ManualClock())):
        check_sound(sighting)
    sighting = parse_scheduled(data, ManualClock())
    if sighting.health.seeing and not sighting.notices:
        assert all(isinstance(item, dict) for item in json.loads(data))


@given(st.lists(EVENTS | JSON, max_size=5))
def test_every_item_is_over_or_shown_or_blinds(items: list[Any]) -> None:
    """An item that does not say that it is over is a notice, or the source is blind."""
    sighting = scheduled(items)
    check_sound(sighting)
    standing = [item for item in items if not _over(item)]
    if standing and not sighting.notices:
        assert not sighting.health.seeing
    if not standing:
        assert (sighting.health.seeing, sighting.notices) == (True, ())


def _over(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    state, text = item.get("State"), item.get("Description")
    words = ("completed", "canceled", "cancelled")
    return (isinstance(state, str) and state.strip().lower() in words) or (
        isinstance(text, str) and text.strip().lower().startswith(tuple(f"[{word}]" for word in words))
    )


@given(code=CODE.filter(str.strip), instant=INSTANTS, state=STATE, expected=st.booleans())
def test_an_event_with_a_date_is_a_notice_at_that_date(
    code: str, instant: datetime, state: Any, expected: bool
) -> None:
    """Clamped to now and a year; past by more than a wrong clock explains, it is advice unless it was expected."""
    item = {"Code": code, "NotBefore": date(instant.timestamp()), "State": state}
    if _over(item):
        return
    clock, body = ManualClock(), json.dumps([item]).encode()
    (notice,) = parse_scheduled(body, clock).notices
    if expected:
        (notice,) = parse_scheduled(body, clock, expected={notice.id}).notices
    ahead = instant.timestamp() - clock.time()
    assert notice.deadline - notice.seen_at == min(max(ahead, 0), YEAR)
    past = -ahead > STALE and not expected
    assert notice.severity is (Severity.ADVISORY if past else Severity.LATER)


def test_an_event_in_the_form_of_other_keys_is_read() -> None:
    """Forms come and go."""
    (notice,) = scheduled([{"Code": "instance-stop", "NotBefore": "2026-11-20T10:10:00Z"}]).notices
    assert notice.deadline - notice.seen_at == 600


@given(time=DATES | st.text() | JSON, strict=st.booleans(), extra=JSON)
def test_a_recommendation_with_a_time_in_words_is_advice(time: Any, strict: bool, extra: Any) -> None:
    """Any words, for it costs one checkpoint; under an error's status only a time."""
    body = json.dumps({"noticeTime": time, "more": extra}).encode()
    sighting = parse_rebalance(body, ManualClock(), strict=strict)
    check_sound(sighting)
    known = parse_date(time) is not None
    wanted = known if strict else isinstance(time, str) and bool(time.strip())
    assert bool(sighting.notices) is sighting.health.seeing is wanted
    for notice in sighting.notices:
        assert notice.severity is Severity.ADVISORY


@pytest.mark.parametrize("data", [b"[" * 100_000, b"9" * 10_000, b'[{"Code":' * 5_000, b'[{"Code": 1e999}]'])
def test_json_made_to_hurt_is_garbage(data: bytes) -> None:
    """Nesting and digits beyond Python's limits."""
    assert parse_scheduled(data, ManualClock()).health.reason == "garbage"
    assert parse_rebalance(data, ManualClock()).health.reason == "garbage"


@pytest.mark.parametrize("depth", [100, 500, 900])
def test_an_item_nested_to_the_brink_is_garbage(depth: int) -> None:
    """What could still be read is not shown by something that cannot follow it down."""
    body = b'[{"Code": ' + b"[" * depth + b"]" * depth + b"}]"
    assert parse_scheduled(body, ManualClock()).health.reason == "garbage"
