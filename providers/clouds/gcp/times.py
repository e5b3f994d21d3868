"""Times as GCP writes them: instants by RFC 3339, durations as a number of seconds. Any other value gives None."""

from __future__ import annotations

import re
from typing import Any

from ...dates import parse_iso

_DURATION = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})?\s*s?")


def parse_instant(value: Any) -> float | None:
    """Return the Unix seconds of `2026-11-20T10:22:00Z` (without a zone: UTC), or of a number that already is that."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9]{10}", text):  # until the year 2286
        return float(text)
    return parse_iso(text)


def parse_duration(raw: Any) -> float | None:
    """Return the seconds of "120s", "120", 120 or {"seconds": "120"}, which is a protobuf's Duration in JSON."""
    value = raw.get("seconds") if isinstance(raw, dict) else raw
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _DURATION.fullmatch(str(value).strip())
    return float(match[1]) if match else None
