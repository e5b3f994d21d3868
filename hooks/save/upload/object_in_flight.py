"""One put of an object that is on its way, and when it is late enough to be sent a second time."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..plan.write_plan import StoredObject

#: A put lags if none of its bytes moved for `_STILL` seconds, and for as long as its peers took. It also lags if it takes
#: `_TIMES` as long as its peers, at a pace at which a second put would overtake it.
_STILL, _TIMES = 2.0, 2.5
#: Seconds without a moved byte after which a put lags if the usual time is unknown: one connection of a slow link may need as
#: many for a MiB.
_STILL_AT_FIRST = 4.0


@dataclass(slots=True, eq=False)
class Shift:
    """The workers of one part of a transfer."""

    workers: int = 0
    #: Those that are inside a call of the store.
    sending: int = 0


@dataclass(slots=True, eq=False)
class ObjectInFlight:
    """One put of an object that is on its way."""

    index: int
    data: memoryview
    crc32: int
    stored: StoredObject
    began: float
    #: When some of its bytes last left.
    moved: float
    sent: int = 0
    #: The shift of its worker.
    shift: Shift = field(default_factory=Shift)
    #: How many failures the save had met when its last try began.
    failures: int = 0
    #: A second worker sends the object too.
    doubled: bool = False

    def double(self, data: memoryview, now: float, shift: Shift) -> ObjectInFlight:
        """Return a second put of the same object, from a copy."""
        return ObjectInFlight(self.index, data, self.crc32, self.stored, now, now, shift=shift)

    def lags(self, now: float, usual: float | None) -> bool:
        """Return whether a second put of the object is worth its bytes.

        On a full link connections do not share evenly, so one put is late. A second put would take from the link the bytes that
        the first waits for (seen: a tenth of a save at 100 Mbit/s).

        Args:
            now: monotonic seconds.
            usual: seconds that its peers took; None if unknown.
        """
        if now - self.moved > (_STILL_AT_FIRST if usual is None else max(_STILL, usual)):
            return True
        if usual is None or now - self.began <= max(1.0, _TIMES * usual):
            return False
        return (len(self.data) - self.sent) * (now - self.began) > usual * self.sent
