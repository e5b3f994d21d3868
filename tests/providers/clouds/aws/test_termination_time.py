"""S5: the older key, `spot/termination-time`, over real sockets: only a time that is not stale is a notice."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.clouds.aws.source import STALE, AwsSource
from spotguard.providers.clouds.aws.spot import TerminationTime, parse_termination_time
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Notice, NoticeKind, Sighting
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.looking import MakeSource
from tests.providers.clouds.looking import the_notice as the_notice_now

NOW = datetime.fromtimestamp(ManualClock().time(), UTC)


def the_notice(source: AwsSource) -> Notice:
    """At the second look, whose time has come soon."""
    assert source.poll() == Sighting(SEEING)
    assert source.interval == 3.0
    notice = the_notice_now(source)
    assert source.interval == 10.0
    return notice


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("absent", ""),
        ("garbage", "no time, no notice: none"),
        ("stale", "stale, no notice: terminate at 2026-11-20T09:00:00Z"),
    ],
)
def test_s5_what_is_no_time_to_come_is_no_notice(
    instance: AwsSimulator, watch: MakeSource, value: str, detail: str
) -> None:
    """404, a value that is no time, and the time of an interruption that failed: documented, seen, and said."""
    instance.termination_time(value)
    source = watch(instance, TerminationTime)
    sighting = source.poll()
    assert (sighting.notices, sighting.health.seeing, sighting.health.detail) == ((), True, detail)
    instance.termination_time("valid", 90)
    assert the_notice(source).kind is NoticeKind.TERMINATE


def test_s5_a_time_to_come_is_a_notice(instance: AwsSimulator, watch: MakeSource, clock: ManualClock) -> None:
    """The deadline is that time, and it stays the same notice, whatever the looks cost."""
    instance.termination_time("valid", 90)
    source = watch(instance, TerminationTime)
    began = clock.monotonic()
    notice = the_notice(source)
    assert (notice.deadline, notice.window, notice.seen_at) == (began + 90, 120, began)
    clock.advance(60)
    assert the_notice_now(source) is notice


def test_s5_it_is_the_notice_that_instance_action_shows(instance: AwsSimulator, watch: MakeSource) -> None:
    """One id: whoever sees it second sees nothing new. Stop and hibernate are not shown here at all."""
    instance.preempt(100)
    one, other = the_notice_now(watch(instance)), the_notice(watch(instance, TerminationTime))
    assert (one.id, one.kind, one.deadline, one.severity) == (
        other.id,
        other.kind,
        other.deadline,
        other.severity,
    )
    assert one.source != other.source
    instance.clear()
    instance.preempt(action="stop")
    assert watch(instance, TerminationTime).poll() == Sighting(SEEING)


@pytest.mark.parametrize("before", ["absent", "garbage"])
def test_s5_a_time_that_appears_is_never_stale(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, before: str
) -> None:
    """There was none a look ago: an hour-old one is our clock's fault."""
    instance.termination_time(before)
    source = watch(instance, TerminationTime)
    source.poll()
    clock.step_wall(7200)
    instance.termination_time("valid", -7200)
    assert the_notice(source).deadline == clock.monotonic()


# --- the parser ---------------------------------------------------------------------------------------------


def parse(body: bytes, *, strict: bool = False) -> Sighting:
    return parse_termination_time(body, ManualClock(), strict=strict)


@given(st.binary() | st.text().map(str.encode), st.booleans())
def test_no_bytes_raise_and_none_are_a_notice_by_chance(data: bytes, strict: bool) -> None:
    """Without the form of a time there is no notice; under an error's status there is no good news either."""
    sighting = parse(data, strict=strict)
    assert sighting.health.detail.isprintable() or not sighting.health.detail
    if b"T" not in data and b"GMT" not in data:
        assert sighting.notices == ()
    if strict:
        assert bool(sighting.notices) is sighting.health.seeing or "stale" in sighting.health.detail


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_time_in_awss_form_is_a_notice_or_stale(instant: datetime) -> None:
    """Clamped to the window; stale by its own words."""
    whole = instant.replace(microsecond=0)
    sighting = parse(whole.isoformat().replace("+00:00", "Z").encode())
    assert sighting.health.seeing
    assert (sighting.notices == ()) is (NOW - whole > timedelta(seconds=STALE))
    for notice in sighting.notices:
        assert notice.seen_at <= notice.deadline <= notice.seen_at + 120


@pytest.mark.parametrize(
    "text", ["20271120", "2027-11-20", "2027-W01-1", "20271120T100000Z", "1795168920", "2027-11-20T10:00:00"]
)
def test_a_number_that_python_takes_for_a_date_is_no_time(text: str) -> None:
    """The key may hold a value that is no time, and no training ends by such a one."""
    assert parse(text.encode()).notices == ()


@pytest.mark.parametrize("text", ["2026-13-45T99:00:00Z", "2026-02-30T10:00:00Z"])
def test_a_malformed_time_is_blindness(text: str) -> None:
    """Somebody meant a time: we are blind for it."""
    assert parse(text.encode()).health.reason == "garbage"


@pytest.mark.parametrize("text", ["20 Nov 2026 10:01:00 GMT", "Fri, 20 Nov 2026 10:01:00 GMT"])
def test_a_time_in_the_form_of_other_keys_is_one(text: str) -> None:
    (notice,) = parse(text.encode()).notices
    assert notice.deadline == notice.seen_at + 60


@pytest.mark.parametrize("value", [{"time": "2026-11-20T10:02:00Z"}, ["2026-11-20T10:02:00Z"], "x" * 61])
def test_a_value_that_is_no_short_line_is_garbage(value: object) -> None:
    """A later form of the key, maybe: not to be taken for nothing."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    assert parse(body).health.reason == "garbage"
