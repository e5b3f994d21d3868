"""Times as GCP writes them: instants by RFC 3339, durations as a number of seconds. Total: what is neither is None."""

from __future__ import annotations

import re
from typing import Any

from ...dates import parse_iso

_DURATION = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})?\s*s?")


def parse_instant(said: Any) -> float | None:
    """Unix seconds of `2026-11-20T10:22:00Z` (without a zone: UTC), or of a number that is such seconds already."""
    if not isinstance(said, str):
        return None
    text = said.strip()
    if re.fullmatch(r"[0-9]{10}", text):  # until the year 2286
        return float(text)
    return parse_iso(text)


def parse_duration(said: Any) -> float | None:
    """Seconds of "120s", "120", 120 or, as JSON has a protobuf's Duration, {"seconds": "120"}."""
    value = said.get("seconds") if isinstance(said, dict) else said
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _DURATION.fullmatch(str(value).strip())
    return float(match[1]) if match else None
