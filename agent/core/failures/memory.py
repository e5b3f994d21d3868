"""Memory that is about to end: the warning while a checkpoint can still be made.

A wrong alarm costs a log line and a background checkpoint. Pure, like all of `core`: the time and the counters come in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ....providers.notice import Notice, NoticeKind, Severity
from ....providers.text import amount
from ...events import NoticeGone, NoticeSeen

#: Seconds between two readings.
EVERY = 2.0
#: Share of the limit from which a growing use is looked at. What is loaded at a start often grows faster, and stops below it.
_HIGH = 0.8
#: Seconds over which the growth is measured. Garbage collection, evaluation and prefetching rise and fall faster.
_SPAN = 30.0
#: Seconds ahead: memory that ends later leaves time for the next background checkpoint.
_AHEAD = 120.0
#: Share of ten seconds in which nothing ran because all waited for memory: the kernel is about to kill.
_PRESSED = 0.25
#: Share of the limit below which the alarm is over, and seconds after which it is over if nothing has come of it.
_CALM, _WRONG = 0.7, 300.0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory of a machine or a cgroup at one moment."""

    #: Whose memory it is, in a log line.
    whose: str
    #: Bytes that cannot be given back at once, and the most there can be.
    used: int
    limit: int
    #: Share of the last ten seconds in which all tasks waited for memory (PSI, "full"); 0.0 if it is not known.
    pressure: float = 0.0


class MemoryWatch:
    """The memory's use over the last half minute, of whatever is fullest."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, MemoryReading]] = deque()
        #: The id of the notice that stands; "" for none.
        self._standing = ""
        #: Monotonic seconds at which there was last a reason for it.
        self._right_at = 0.0

    def hear(self, reading: MemoryReading, now: float) -> NoticeSeen | NoticeGone | None:
        """Take in a reading. Return an advisory notice if memory is about to end, and its end once memory is free again."""
        if self._seen and (self._seen[-1][1].whose, self._seen[-1][1].limit) != (
            reading.whose,
            reading.limit,
        ):
            self._seen.clear()
        self._seen.append((now, reading))
        while len(self._seen) > 1 and self._seen[1][0] <= now - _SPAN:
            self._seen.popleft()
        share = reading.used / reading.limit
        why = self._why(reading, now) if share >= _HIGH else ""
        if self._standing:
            self._right_at = now if why else self._right_at
            if share >= _CALM and now - self._right_at < _WRONG:
                return None
            gone, self._standing = NoticeGone(self._standing), ""
            return gone
        if not why:
            return None
        self._standing, self._right_at = f"memory-{now:.0f}", now
        used = f"{amount(reading.used)} of {amount(reading.limit)} of {reading.whose}"
        notice = Notice(
            self._standing,
            NoticeKind.MEMORY,
            "spotguard",
            now + _AHEAD,
            now,
            Severity.ADVISORY,
            f"{used} are in use, {why}",
        )
        return NoticeSeen(notice)

    def _why(self, reading: MemoryReading, now: float) -> str:
        if reading.pressure >= _PRESSED:
            return f"and all processes waited for memory for {reading.pressure:.0%} of the last 10 s"
        since, before = self._seen[0]
        grown, seconds = reading.used - before.used, now - since
        if grown <= 0 or seconds < _SPAN / 2:
            return ""
        ahead = (reading.limit - reading.used) * seconds / grown
        return (
            f"and at the pace of the last {seconds:.0f} s it ends in {ahead:.0f} s" if ahead <= _AHEAD else ""
        )
