"""Any bytes at all: never an exception, and never "no notice" where there may be one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.aws.source import STALE
from spotguard.providers.clouds.aws.spot import parse_instance_action
from spotguard.providers.dates import parse_iso
from spotguard.providers.health import Sight
from spotguard.providers.notice import Notice, NoticeKind, Sighting
from tests.fakes.clock import ManualClock
from tests.providers.clouds.anything import DATES, JSON

ACTIONS = st.sampled_from(["terminate", "stop", "hibernate", " Terminate ", "reboot"]) | st.text(min_size=1)


def parse(body: bytes, *, new: bool = False) -> Sighting:
    return parse_instance_action(body, ManualClock(), new=new)


def body(action: object, time: object) -> bytes:
    return json.dumps({"action": action, "time": time}).encode()


def at(seconds: float) -> str:
    """AWS's own form of an instant so many seconds from the clock's."""
    instant = datetime.fromtimestamp(ManualClock().time() + seconds, UTC)
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def the_notice(sighting: Sighting) -> Notice:
    assert sighting.health.seeing, sighting
    (notice,) = sighting.notices
    return notice


def check_sound(sighting: Sighting) -> None:
    """What holds of every outcome."""
    assert sighting.health.detail.isprintable()
    if not sighting.health.seeing:
        assert sighting.notices == ()
        assert sighting.health.reason == "garbage"
        assert sighting.health.advice
    for notice in sighting.notices:
        assert sighting.health.seeing
        assert notice.seen_at <= notice.deadline <= notice.seen_at + notice.window <= notice.seen_at + 120
        assert notice.id.isprintable()
        assert len(notice.id) < 150
        assert notice.detail.isprintable()


@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_raise_and_none_pass_for_nothing(data: bytes) -> None:
    """Random bytes hold no action: we are blind, and say so."""
    sighting = parse(data)
    check_sound(sighting)
    assert not sighting.health.seeing


@given(JSON)
def test_no_json_raises_and_none_passes_for_nothing(value: Any) -> None:
    """JSON without an action in words is garbage, whatever else it is."""
    sighting = parse(json.dumps(value).encode())
    check_sound(sighting)
    assert bool(sighting.notices) is sighting.health.seeing


@given(
    action=ACTIONS | JSON,
    time=DATES.map(datetime.isoformat) | st.text() | JSON,
    new=st.booleans(),
    extra=JSON,
)
def test_an_action_is_a_notice_or_shows(action: Any, time: Any, new: bool, extra: Any) -> None:
    """Any action with any time: a notice, or blind, or stale by its own words; and never raises."""
    sighting = parse(json.dumps({"action": action, "time": time, "more": extra}).encode(), new=new)
    check_sound(sighting)
    if sighting.health.seeing and not sighting.notices:
        wall = parse_iso(time)
        assert wall is not None
        assert not new
        assert ManualClock().time() - wall > STALE
        assert sighting.health.detail.startswith("stale")
    if isinstance(action, str) and action.strip():
        assert sighting.health.seeing


@given(DATES)
def test_every_date_of_the_calendar_is_read(instant: datetime) -> None:
    """With any zone, or without: then it is UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    assert parse_iso(instant.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-3)


@given(JSON)
def test_no_time_raises(value: Any) -> None:
    """What is no time is None."""
    assert parse_iso(value) is None or isinstance(value, str)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"9" * 10_000, b'{"action":' * 5_000, b'{"action": 1e999999}']
)
def test_json_made_to_hurt_is_garbage(data: bytes) -> None:
    """Nesting and digits beyond Python's limits."""
    assert parse(data).health.reason == "garbage"


@pytest.mark.parametrize(
    ("action", "kind", "left", "window"),
    [
        ("terminate", NoticeKind.TERMINATE, 108, 120),
        ("stop", NoticeKind.STOP, 108, 120),
        ("hibernate", NoticeKind.HIBERNATE, 0, 0),
        (" Terminate\n", NoticeKind.TERMINATE, 108, 120),
        ("vaporize", NoticeKind.UNKNOWN, 30, 30),
    ],
)
def test_each_action_has_its_kind_and_its_window(
    action: str, kind: NoticeKind, left: float, window: float
) -> None:
    """Hibernation begins at once; what a later AWS may say is the end, soon."""
    notice = the_notice(parse(body(action, at(108))))
    assert (notice.kind, notice.window, notice.source) == (kind, window, "aws spot/instance-action")
    assert notice.deadline - notice.seen_at == left


def test_an_unknown_action_says_that_it_is_unknown() -> None:
    """A person reading the log must see that this was a guess."""
    assert "unknown to this program" in the_notice(parse(body("vaporize", at(108)))).detail


@pytest.mark.parametrize(
    "time", [None, "", "soon", 1795168800, "21 Jan 2019 09:00:43 GMT", "2026-13-45T99:00:00Z", []]
)
def test_an_action_without_a_readable_time_is_a_notice_with_a_short_window(time: object) -> None:
    """The machine goes, and nobody knows when: believing in two minutes could lose the save."""
    notice = the_notice(parse(body("terminate", time)))
    assert notice.deadline - notice.seen_at == notice.window == 30
    assert "not a time" in notice.detail


def test_a_missing_time_and_unknown_fields_are_survived() -> None:
    """Fields come and go."""
    assert the_notice(parse(b'{"action": "stop", "detail": {"a": [1]}}')).kind is NoticeKind.STOP


@pytest.mark.parametrize(("ahead", "left"), [(300, 120), (120, 120), (5, 5), (-3, 0), (-180, 0)])
def test_the_time_is_clamped_to_the_window(ahead: float, left: float) -> None:
    """A clock that is off makes no window longer than AWS gives, and one that is past is now."""
    assert the_notice(parse(body("terminate", at(ahead)))).deadline == ManualClock().monotonic() + left


def test_a_time_long_past_is_no_notice_and_says_so() -> None:
    """EC2 keeps the value where it failed to interrupt: the next command on this machine is not to be ended."""
    sighting = parse(body("terminate", at(-181)))
    assert sighting.notices == ()
    assert sighting.health.sight is Sight.SEEING
    assert sighting.health.detail == f"stale, no notice: terminate at {at(-181)}"


def test_a_time_long_past_on_a_key_that_just_appeared_is_our_clocks_fault() -> None:
    """The value is new, so the machine goes; by a clock an hour ahead it went an hour ago."""
    assert the_notice(parse(body("terminate", at(-3600)), new=True)).deadline == ManualClock().monotonic()


def test_the_same_words_are_the_same_notice() -> None:
    """Read again, later, by another process: one id. Another time or another action: another."""
    first = parse_instance_action(body("stop", at(60)), ManualClock())
    later = parse_instance_action(body("stop", at(60)), ManualClock(now=5.0))
    assert the_notice(first).id == the_notice(later).id
    others = [body("stop", at(61)), body("terminate", at(60)), body("stop", "soon"), body("halt", at(60))]
    assert len({the_notice(parse(data)).id for data in others} | {the_notice(first).id}) == 5
