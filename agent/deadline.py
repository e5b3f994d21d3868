"""`--deadline`: an end that is known beforehand. A reservation, a queue's time limit, a machine that was lent.

It is a source like a cloud's, with one notice that always stands and lies far off (`horizon`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime

from ..providers.clock import Clock
from ..providers.health import SEEING
from ..providers.notice import Notice, NoticeKind, Severity, Sighting
from .horizon import span
from .values import refuse

NAME = "--deadline"

_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FROM_NOW = re.compile(r"\+?(?:\d+(?:\.\d+)?(?:sec|min|[smhd]))+|\+\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(sec|min|[smhd]?)")
#: Nobody reserves a machine for longer than ten years, and Unix milliseconds would be the year 58000.
_LONGEST = 10 * 366 * 86400.0
#: In every message, help and page: to be copied, so neither past nor further off than is taken, for years.
EXAMPLE = "2035-06-30T18:00"
_EXPECTED = f"a time, as in {EXAMPLE} (or with a zone, +01:00 or Z), Unix seconds, or from now +3600 or 2h30m"


@dataclass(frozen=True, slots=True)
class Deadline:
    """What was said: an instant, or a time from the start of this program on. One of the two is None."""

    #: Unix seconds.
    wall: float | None = None
    after: float | None = None
    #: Who said it, and how, for what has to be said about it later.
    origin: str = field(default=NAME, compare=False)
    text: str = field(default="", compare=False)


def read(origin: str, text: str, expected: str = _EXPECTED) -> Deadline:
    """What a person wrote. A time without a zone is the machine's own.

    Args:
        expected: what would be a time, for who asks.

    Raises:
        UsageError: it is no time.
    """
    word = text.strip()
    if _FROM_NOW.fullmatch(word.lower()):
        parts = _PART.findall(word.lower())
        seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
        if seconds > _LONGEST:
            refuse(origin, text, "a time within ten years from now on: Unix seconds are written without a +")
        return Deadline(after=seconds, origin=origin, text=text)
    wall = _instant(word)
    if wall is None or not math.isfinite(wall):
        refuse(origin, text, expected)
    return Deadline(wall=wall, origin=origin, text=text)


def _instant(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, OSError):  # a year that the system's clock does not know
        return None


class DeadlineSource:
    """The deadline as a `NoticeSource`.

    An instant is looked at anew every few seconds: while a machine sleeps, or its clock is put right, the way to it
    becomes another one. What was said from now on is not: no clock but the monotonic one has to do with it.
    """

    name = NAME
    interval = 10.0
    longest = 0.0
    #: A clock that is put back moves it away, and that is believed (`watcher`).
    withdraws = True

    def __init__(self, said: Deadline, clock: Clock) -> None:
        """Raises `UsageError` where it is past, or further off than anybody means."""
        self._said = said
        self._clock = clock
        self._seen_at = clock.monotonic()
        left = said.after if said.wall is None else said.wall - clock.time()
        assert left is not None
        if left <= 0:
            number = said.text.strip()
            # A time of Unix that is past is more than anybody means from now on.
            meant = number.isdecimal() and float(number) <= _LONGEST
            way = f"for seconds from now say +{number}" if meant else "say a later one"
            refuse(said.origin, said.text, f"a time to come: this one was {span(-left)} ago; {way}")
        if left > _LONGEST:
            refuse(
                said.origin, said.text, "a time within ten years: Unix time is in seconds, not milliseconds"
            )
        self._ends_at = self._seen_at + left
        end = datetime.fromtimestamp(clock.time() + left).astimezone()
        self._detail = end.isoformat(sep=" ", timespec="seconds")

    def poll(self) -> Sighting:
        if self._said.wall is not None:
            self._ends_at = self._clock.monotonic() + self._said.wall - self._clock.time()
        notice = Notice(
            id=f"deadline/{self._said.text.strip()}",
            kind=NoticeKind.DEADLINE,
            source=self.name,
            deadline=self._ends_at,
            seen_at=self._seen_at,
            severity=Severity.LATER,
            detail=self._detail,
        )
        return Sighting(SEEING, (notice,))

    def close(self) -> None:
        """There is nothing to give back."""
