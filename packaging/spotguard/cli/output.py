"""What a person sees and what a program reads: tables by rich on stdout, or JSON with `--json`."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

#: Columns where nobody looks: a table in a file or a pipe is not folded to 80.
_WIDE = 200


def add_json(parser: argparse._ActionsContainer, form: str = "one JSON document") -> None:
    parser.add_argument("--json", action="store_true", help=f"{form}, for a program")


def console() -> Console:
    made = Console(highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDE)


def print_json(body: Any, *, indent: int | None = 2) -> None:
    json.dump(body, sys.stdout, indent=indent)
    sys.stdout.write("\n")
    sys.stdout.flush()


def moment(wall: float | None) -> str:
    """Wall seconds in the reader's own zone."""
    if wall is None:
        return "-"
    return datetime.fromtimestamp(wall, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_moment(wall: float | None, now: float) -> str:
    """For where there is little room: day and minute, or day and year of what is long ago."""
    if wall is None:
        return "-"
    # As ls(1) has it, whose half a year is short for a run: within this long no day comes twice.
    recent = abs(now - wall) < 300 * 86_400
    at = datetime.fromtimestamp(wall, UTC).astimezone()
    return at.strftime("%m-%d %H:%M" if recent else "%Y-%m-%d")
