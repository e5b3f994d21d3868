"""Output of the commands on stdout: tables by rich for a person, or JSON for a program (`--json`)."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

#: Columns of a table in a file or a pipe, where rich would fold it to 80.
_WIDE = 200


def add_json(parser: argparse._ActionsContainer, form: str = "one JSON document") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {form}")


def console() -> Console:
    made = Console(highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDE)


def print_json(body: Any, *, indent: int | None = 2) -> None:
    json.dump(body, sys.stdout, indent=indent)
    sys.stdout.write("\n")
    sys.stdout.flush()


def moment(wall: float | None) -> str:
    """Return the time of `wall` (Unix seconds) in the reader's time zone; "-" if there is none."""
    if wall is None:
        return "-"
    return datetime.fromtimestamp(wall, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_moment(wall: float | None, now: float) -> str:
    """Return a short form of `moment`: day and minute, or day and year if `wall` is long ago."""
    if wall is None:
        return "-"
    # ls(1) does the same after half a year, which is short for a run. No date without a year comes twice within 300 days.
    recent = abs(now - wall) < 300 * 86_400
    at = datetime.fromtimestamp(wall, UTC).astimezone()
    return at.strftime("%m-%d %H:%M" if recent else "%Y-%m-%d")
