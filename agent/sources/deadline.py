"""`--deadline`: an end that is known beforehand. A reservation, a queue's time limit, a machine that was lent.

It is a source like a cloud's, with one notice that always stands and lies far off (`core.upcoming`).
"""

from __future__ import annotations

from datetime import datetime

from ...providers.clock import Clock
from ...providers.health import SEEING
from ...providers.notice import Notice, NoticeKind, Severity, Sighting
from ...providers.text import span
from ..config.parsers import DEADLINE, FARTHEST, Deadline, refuse


class DeadlineSource:
    """The deadline as a `NoticeSource`.

    An instant is looked at anew every few seconds: while a machine sleeps, or its clock is put right, the way to it
    becomes another one. What was said from now on is not: no clock but the monotonic one has to do with it.
    """

    name = DEADLINE
    interval = 10.0
    longest = 0.0
    #: A clock that is put back moves it away, and that is believed (`poller`).
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
            meant = number.isdecimal() and float(number) <= FARTHEST
            way = f"for seconds from now say +{number}" if meant else "say a later one"
            refuse(said.origin, said.text, f"a time to come: this one was {span(-left)} ago; {way}")
        if left > FARTHEST:
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
