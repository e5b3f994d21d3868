"""Anything that a metadata service might say one day: what the parsers of all clouds are fed."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
#: With a zone or without; one is hours and minutes from UTC (RFC 3339, 5.6).
DATES = st.datetimes(
    timezones=st.none()
    | st.just(UTC)
    | st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
)
