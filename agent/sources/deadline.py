"""`--deadline`: a source for an end that is known beforehand, such as a reservation, a queue's time limit or a lent machine.

It works like a cloud's source. Its one notice always stands and its deadline is usually far off (`core.upcoming`).
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

    Each poll recomputes the time left until an instant: it changes when the machine sleeps or its clock is corrected. A
    deadline given as seconds from now depends on the monotonic clock only, so no poll recomputes it.
    """

    name = DEADLINE
    interval = 10.0
    longest = 0.0
    #: A clock that is set back moves the deadline later, and the poller accepts that (`poller`).
    withdraws = True

    def __init__(self, option: Deadline, clock: Clock) -> None:
        """Keep the deadline.

        Args:
            option: the parsed option.
            clock: the clock against which an instant is read.

        Raises:
            UsageError: the deadline is past, or more than ten years off.
        """
        self._option = option
        self._clock = clock
        self._seen_at = clock.monotonic()
        left = option.after if option.wall is None else option.wall - clock.time()
        assert left is not None
        if left <= 0:
            number = option.text.strip()
            # A past Unix time is too large a number to have been meant as seconds from now.
            meant = number.isdecimal() and float(number) <= FARTHEST
            way = f"for seconds from now pass +{number}" if meant else "pass a later one"
            refuse(option.origin, option.text, f"a time to come: this one was {span(-left)} ago; {way}")
        if left > FARTHEST:
            refuse(
                option.origin,
                option.text,
                "a time within ten years: Unix time is in seconds, not milliseconds",
            )
        self._ends_at = self._seen_at + left
        end = datetime.fromtimestamp(clock.time() + left).astimezone()
        self._detail = end.isoformat(sep=" ", timespec="seconds")

    def poll(self) -> Sighting:
        if self._option.wall is not None:
            self._ends_at = self._clock.monotonic() + self._option.wall - self._clock.time()
        notice = Notice(
            id=f"deadline/{self._option.text.strip()}",
            kind=NoticeKind.DEADLINE,
            source=self.name,
            deadline=self._ends_at,
            seen_at=self._seen_at,
            severity=Severity.LATER,
            detail=self._detail,
        )
        return Sighting(SEEING, (notice,))

    def close(self) -> None:
        """Do nothing: this source holds no resource."""
