"""The observed forms of `instance/upcoming-maintenance`, for planned maintenance and for none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from .tree import JSON, TEXT, TreeLeaf

_ERROR = b'{ "error": "no notifications have been received yet, try again later" }'

#: A VM's answers if nothing is planned, by name; None for a key that does not exist.
NOTHING: Mapping[str, TreeLeaf | None] = {
    "empty": TreeLeaf(b"{ }", JSON),
    "bare": TreeLeaf(b"NONE", TEXT),
    "quoted": TreeLeaf(b'"NONE"', JSON),
    "error": TreeLeaf(_ERROR, JSON),
    "error-503": TreeLeaf(_ERROR, JSON, status=503),
    "missing": None,
}

#: Duration of a maintenance window, in seconds.
LENGTH = 4 * 3600.0


def planned(start: float, spelling: str, status: str = "PENDING") -> bytes:
    """Return a VM's answer for maintenance whose window begins at `start` (Unix seconds)."""
    fields: dict[str, Any] = {
        "can_reschedule": "false",
        "latest_window_start_time": _iso(start),
        "maintenance_reasons": ["PLANNED_UPDATE"],
        "maintenance_status": status,
        "type": "SCHEDULED",
        "window_end_time": _iso(start + LENGTH),
        "window_start_time": _iso(start),
    }
    return SPELLINGS[spelling](fields)


def _iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    def name(snake: str) -> str:
        first, *rest = snake.split("_")
        return first + "".join(word.capitalize() for word in rest)

    return {name(key): value for key, value in fields.items()}


def _old(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": fields["type"],
        "maintenanceStatus": fields["maintenance_status"],
        "startTime": fields["window_start_time"],
    }


def _dumped(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


#: Functions from the fields in snake_case to an answer, by name.
SPELLINGS: Mapping[str, Callable[[dict[str, Any]], bytes]] = {
    "snake": _dumped,
    "camel": lambda fields: _dumped(_camel(fields)),
    "old": lambda fields: _dumped(_old(fields)),
    "wrapped": lambda fields: _dumped({"Upcoming maintenance": fields}),
    # As on a page of the documentation.
    "unbraced": lambda fields: b'"Upcoming maintenance": ' + _dumped(fields),
}
