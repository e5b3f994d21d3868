"""The form of time that all three clouds write, each beside forms of its own: ISO 8601, or RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


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
