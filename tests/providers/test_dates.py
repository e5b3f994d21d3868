"""Dates of clouds and stores: every instant is read in both forms, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.dates import parse_date, parse_http_date, parse_iso
from tests.providers.clouds.anything import JSON

SECONDS = st.datetimes(timezones=st.just(UTC)).map(lambda instant: instant.replace(microsecond=0))


@given(st.datetimes(timezones=st.none() | st.timezones()))
def test_every_instant_is_read_in_iso_and_one_without_a_zone_is_utc(instant: datetime) -> None:
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    assert parse_iso(instant.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-3)


@given(SECONDS)
def test_every_instant_is_read_as_http_writes_it(instant: datetime) -> None:
    """Azure writes the day of the week; AWS leaves it out."""
    if instant.year >= 1000:
        text = format_datetime(instant, usegmt=True)
        assert parse_http_date(text) == instant.timestamp()
        assert parse_http_date(text.partition(", ")[2]) == instant.timestamp()


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("Mon, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47+00:00"),
        ("19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47+00:00"),
        ("2020-04-30T20:00:00Z", "2020-04-30T20:00:00+00:00"),
        ("2020-04-30T20:00:00.1234567Z", "2020-04-30T20:00:00.123456+00:00"),
        ("2020-04-30 20:00:00", "2020-04-30T20:00:00+00:00"),
        (" 2020-04-30T22:00:00+02:00\n", "2020-04-30T20:00:00+00:00"),
    ],
)
def test_the_dates_of_the_field(text: str, iso: str) -> None:
    """Of the clouds themselves, of Azure's mock server, and their neighbours."""
    assert parse_date(text) == datetime.fromisoformat(iso).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "Mon, 99 Sep 2016 18:29:47 GMT",
        "2026-13-45T99:00:00Z",
        "21 Jan 2019 09:00:43",
        "21 Jan 2019 09:00:43 CET",
        "31 Feb 2019 09:00:43 GMT",
        "21 Mai 2019 09:00:43 GMT",
        "21 Jan 2019 25:00:43 GMT",
        "٢١ Jan 2019 09:00:43 GMT",
        "0 Jan 2019 09:00:43 GMT",
        "21 Jan 0000 09:00:43 GMT",
    ],
)
def test_another_zone_another_language_and_no_date_are_none(text: str) -> None:
    """Another zone would be another instant. Azure writes a blank once an event has begun."""
    assert parse_date(text) is None


@given(SECONDS.map(datetime.isoformat) | st.text() | JSON)
def test_no_value_raises(value: Any) -> None:
    assert parse_date(value) is None or isinstance(value, str)
