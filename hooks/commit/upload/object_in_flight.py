"""The puts of a save's objects that are on their way: what each has sent, which one lags, and what that tells of the link."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from ..plan.throughput import StoreLink
from ..plan.write_plan import ALL, StoredObject, WriteProgress
from .workers import TaskGroup

#: Called with a phase, the bytes that have left for the store, and the bytes of the complete save. It must not wait.
Progress = Callable[[str, int, int], None]

#: A put lags if none of its bytes moved for `_STILL` seconds, and for as long as its peers took. It also lags if it takes
#: `_TIMES` as long as its peers, at a pace at which a second put would overtake it.
_STILL, _TIMES = 2.0, 2.5
#: Seconds without a moved byte after which a put lags if the usual time is unknown: one connection of a slow link may need as
#: many for a MiB.
_STILL_AT_FIRST = 4.0
#: Number of peers that give the usual time, and their least size as a share of the object's: a small object tells nothing of a
#: large one.
_ENOUGH, _PEER = 3, 0.5


class Superseded(Exception):
    """The object is in the store already, or has to wait, or the save is over. The put must send no more bytes."""


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


class ObjectsInFlight:
    """The puts of one save that are on their way. Any thread of its group may call the methods.

    The link counts the bytes of one shift after the other, so that a pause in between is no time of the link.
    """

    def __init__(
        self, group: TaskGroup, write_progress: WriteProgress, link: StoreLink, progress: Progress | None
    ) -> None:
        self._group = group
        self._write_progress = write_progress
        self._link = link
        self._progress = progress
        self.shift = Shift()
        self._flights: list[ObjectInFlight] = []
        self._begun = False
        #: Bytes of objects that are in the store: now, when the shift began, and those that were put when the part began.
        self._bytes = self._before = self._put = 0
        #: Bytes of objects that the save refers to: they are in the store, and are never sent.
        self._spared = 0
        #: Bytes of the complete save.
        self._total = 0
        #: Since when no object is on its way; None while one is.
        self._quiet: float | None = None
        #: Since when the store refuses, so that no byte moves; None if it does not.
        self._refused: float | None = None
        #: When the part began.
        self._start = 0.0
        #: Bytes and seconds of the put of each object that is in the store.
        self._took: list[tuple[int, float]] = []
        write_progress.leaving = {}

    def begin_part(self, nbytes: int) -> None:
        """Begin a part that has to put `nbytes`."""
        progress = self._write_progress
        self._bytes, self._put, self._start = progress.bytes_of(ALL), progress.put_of(ALL), self._now()
        self._total = nbytes + self._bytes

    @property
    def seconds(self) -> float:
        """Seconds since the part began."""
        return self._now() - self._start

    def begin_shift(self, workers: int) -> Shift:
        now = self._now()
        with self._group.lock:
            self.shift = Shift(workers)
            self._quiet, self._before, self._spared = now, self._bytes, 0
        self._link.begin(now)
        return self.shift

    def end_shift(self, *, whole: bool) -> None:
        """End the shift: give up its puts that still run, and do not count them for the link."""
        with self._group.lock:
            self.shift = Shift()
        self._link.end(self._now(), whole=whole)

    def current(self, shift: Shift) -> bool:
        """Return whether this shift still works."""
        return shift is self.shift and self._group.error is None

    def starts(
        self, index: int, data: memoryview, crc32: int, stored: StoredObject, shift: Shift
    ) -> ObjectInFlight:
        """Note that a put begins, and return it. The first put is the save's first byte on its way."""
        now, failures = self._now(), self._write_progress.failures
        flight = ObjectInFlight(index, data, crc32, stored, now, now, shift=shift, failures=failures)
        with self._group.lock:
            first, self._begun = not self._begun, True
            self._flights.append(flight)
            self._quiet = None
        if first:
            self.tell("first-byte")
        return flight

    def again(self, flight: ObjectInFlight) -> None:
        """Note that the put starts from its first byte.

        Raises:
            Superseded: the put is not needed.
        """
        if self._superseded(flight):
            raise Superseded
        now = self._now()
        with self._group.lock:
            if self._refused is not None:
                # The others resume now too. None of them lags, and the link is as fast as before.
                self._link.paused(now - self._refused)
                self._refused = None
                for each in self._flights:
                    each.began = each.moved = now
            flight.sent, flight.began, flight.moved = 0, now, now
            flight.failures = self._write_progress.failures
            self._write_progress.leaving.pop(flight.index, None)
            flight.shift.sending += 1

    def sent(self, flight: ObjectInFlight, count: int) -> None:
        """Note that `count` more bytes of the put have left for the store.

        Raises:
            Superseded: the rest is not needed.
            Abandoned: the save is over.
        """
        if self._superseded(flight):
            raise Superseded
        self._group.scope.check()
        now = flight.moved = self._now()
        flight.sent += count
        with self._group.lock:
            if not self.current(flight.shift):
                raise Superseded
            leaving = self._write_progress.leaving
            leaving[flight.index] = max(leaving.get(flight.index, 0), min(flight.sent, len(flight.data)))
            if self._refused is not None:
                self._refused = now
            self._link.sent(self._left() - self._before - self._spared, now)
            if flight.sent >= len(flight.data):
                self._group.lock.notify_all()  # a worker may wait for the last weights to leave, to begin the moments
        self.tell("writing")

    def back(self, flight: ObjectInFlight) -> None:
        """Note that the store has answered or failed."""
        with self._group.lock:
            flight.shift.sending -= 1

    def done(self, flight: ObjectInFlight) -> None:
        """Note that the object is in the store."""
        now, progress = self._now(), self._write_progress
        with self._group.lock:
            self._remove(flight, now)
            if flight.index in progress.stored:
                return
            self._took.append((len(flight.data), now - flight.began))
            if flight.failures != progress.failures:  # another request failed behind its answer
                progress.doubted.add(flight.index)
            self._lands(flight.index, flight.stored)

    def dropped(self, flight: ObjectInFlight) -> bool:
        """Note that the put was superseded. Return whether its object only has to wait."""
        with self._group.lock:
            if not self._remove(flight, self._now()):
                return False
            self._write_progress.leaving.pop(flight.index, None)
            return self.current(flight.shift) and flight.index not in self._write_progress.stored

    def spare(self, index: int, known: StoredObject) -> None:
        """Note that an earlier save has put the object, so that this save refers to it, once it is seen in the store."""
        self.pause()
        with self._group.lock:
            self._spared += self._size(index)
            self._write_progress.spared.add(index)
            self._write_progress.doubted.add(index)
            self._lands(index, known)

    def pause(self) -> None:
        """Take the time since no object is on its way from the link's: objects were read, hashed or listed in it."""
        now = self._now()
        with self._group.lock:
            if self._quiet is not None:
                self._link.paused(now - self._quiet)
                self._quiet = now

    def lose(self, index: int) -> None:
        """Note that the store has lost the object."""
        self._bytes -= self._size(index)
        self._before -= self._size(index)
        self._write_progress.lose(index)

    def refuse(self) -> None:
        """Note that the store refuses an object: no byte moves until it accepts a put again."""
        with self._group.lock:
            self._refused = self._now()

    def laggard(self) -> ObjectInFlight | None:
        """Return a put that lags, once for each put."""
        now = self._now()
        for flight in self._flights:
            if self._refused is None and not flight.doubled and flight.lags(now, self.usual(flight)):
                flight.doubled = True
                return flight
        return None

    def usual(self, flight: ObjectInFlight) -> float | None:
        """Return the median of the seconds that its peers took; None if there are too few peers."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * len(flight.data)]
        return statistics.median(peers) if len(peers) >= _ENOUGH else None

    def tell(self, phase: str) -> None:
        """Report how much has left for the store."""
        if self._progress is not None and self._group.error is None:
            self._progress(phase, self._left(), self._total)

    def amount(self) -> str:
        """Return how much of the save has left for the store, and how fast, for a person."""
        left, seconds = self._left(), max(self.seconds, 1e-3)
        sent = max(0, self._write_progress.put_of(ALL) - self._put + left - self._bytes)
        mib = 2**20
        return f"{left / mib:.1f} of {self._total / mib:.1f} MiB at {sent / seconds / mib:.1f} MiB/s"

    # --- inside ---

    def _now(self) -> float:
        return self._group.scope.now()

    def _superseded(self, flight: ObjectInFlight) -> bool:
        progress = self._write_progress
        if not self.current(flight.shift) or flight.index in progress.stored:
            return True
        return progress.holds_back(progress.write_plan.objects[flight.index].tier)

    def _remove(self, flight: ObjectInFlight, now: float) -> bool:
        if flight not in self._flights:
            return False
        self._flights.remove(flight)
        if not self._flights:
            self._quiet = now
        return True

    def _lands(self, index: int, stored: StoredObject) -> None:
        self._write_progress.stored[index] = stored
        self._bytes += self._size(index)

    def _left(self) -> int:
        """Return the bytes that have left for the store: of the objects in the store, and of those on their way."""
        flights = [
            flight for flight in list(self._flights) if flight.index not in self._write_progress.stored
        ]
        return self._bytes + sum(min(flight.sent, len(flight.data)) for flight in flights)

    def _size(self, index: int) -> int:
        return self._write_progress.write_plan.objects[index].size
