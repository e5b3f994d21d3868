"""Dates as clouds and stores write them (ISO 8601, the date of HTTP), and durations as users write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_DATE = re.compile(
    r"(?:[A-Z][a-z]{2}, )?([0-9]{1,2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC)"
)
_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+", re.ASCII)
_SPAN = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|sec|min|[smhd]))+", re.ASCII)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|sec|min|[smhd])", re.ASCII)
#: The months of RFC 9110, 5.6.7, always in English: strptime would use the machine's locale.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_iso(text: Any) -> float | None:
    """Return the Unix seconds of `2026-11-20T10:22:00Z`, or of another ISO form (without a zone: UTC).

    Return None for anything else. Never raises.
    """
    if not isinstance(text, str):
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_http_date(text: Any) -> float | None:
    """Return the Unix seconds of `Mon, 21 Jan 2019 09:00:43 GMT` (RFC 9110, 5.6.7), or of the same without the day of the week.

    Return None for anything else. Never raises.
    """
    match = _DATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        day, year, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 6))
        return datetime(year, _MONTHS.index(match[2]) + 1, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):  # no such month, or no such day in it
        return None


def parse_date(text: Any) -> float | None:
    """Return the Unix seconds of either form, or None. Never raises."""
    seconds = parse_iso(text)
    return parse_http_date(text) if seconds is None else seconds


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90`, `90s`, `1.5m`, `2h30m` or `500ms`; None for anything else."""
    word = text.strip().lower()
    if _SPAN.fullmatch(word):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(word))
    return float(word) if _NUMBER.fullmatch(word) else None
