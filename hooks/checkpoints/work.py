"""One save's objects, as the writer's threads share them: the next, those on their way, how far they are, the first error."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...providers.errors import StoreError
from ..format.chunks import PlannedObject
from .effort import Abandoned, Effort

#: Called with a phase, the bytes that left for the store, and the bytes of all. It must not wait.
Progress = Callable[[str, int, int], None]

#: A put lags when none of its bytes moved for so many seconds, or when it takes so many times what its peers took.
_STILL, _TIMES = 2.0, 2.5
#: Seconds between two looks for one that lags.
_LOOK = 0.1


@dataclass(slots=True, eq=False)
class Flight:
    """One object on its way."""

    index: int
    data: memoryview
    crc32: int
    #: Of its pieces, for the manifest.
    crcs: list[int]
    began: float
    #: When some of its bytes left last.
    moved: float = 0.0
    sent: int = 0
    #: Somebody else sends it too.
    doubled: bool = False


class Superseded(Exception):
    """The object is in the store already, or the save is over: nothing more of it is to be sent."""


class Work:
    """Shared by so many `hands`, and by the thread that waits for them until it calls them off."""

    def __init__(
        self,
        objects: Sequence[PlannedObject],
        hands: int,
        effort: Effort,
        progress: Progress | None,
        moved: Callable[[], str],
    ) -> None:
        self.objects = objects
        self.effort = effort
        self.moved = moved
        self.crcs: dict[int, list[int]] = {}
        self.error: BaseException | None = None
        #: Set when it is `over`.
        self.changed = threading.Event()
        self._progress = progress
        self._lock = threading.Condition()
        self._hands = hands
        #: How many of them are in the store.
        self._sending = 0
        self._next = 0
        self._begun = False
        self._bytes = 0
        self._total = sum(planned.size for planned in objects)
        self._said = ""
        self._flights: list[Flight] = []
        self._took: list[float] = []

    # --- who waits ---

    def over(self) -> bool:
        """Whether every hand is free again, but for those that still send what is there already: they are left behind."""
        return self._hands == 0 or (self._whole() and bool(self.objects) and self._hands == self._sending)

    def call_off(self, why: Abandoned) -> None:
        """No hand begins anything more, and what they still do counts for nothing."""
        self.fail(Abandoned(f"{why}; the store said last: {self._said}") if self._said else why)

    # --- the hands ---

    def next(self) -> int | None:
        with self._lock:
            if self.error is not None or self._next == len(self.objects):
                return None
            self._next += 1
            return self._next - 1

    def starts(self, index: int, data: memoryview, crc32: int, crcs: list[int]) -> Flight:
        """A put begins: the first of them is the save's first byte on its way."""
        now = self.effort.now()
        flight = Flight(index, data, crc32, crcs, now, now)
        with self._lock:
            first, self._begun = not self._begun, True
            self._flights.append(flight)
        if first and self.error is None and self._progress is not None:
            self._progress("first-byte", 0, self._total)
        return flight

    def again(self, flight: Flight) -> None:
        """It is sent from its beginning.

        Raises:
            Superseded: it need not.
        """
        if self.error is not None or flight.index in self.crcs:
            raise Superseded
        with self._lock:
            flight.sent, flight.moved = 0, self.effort.now()
            self._sending += 1

    def back(self) -> None:
        """The store has answered, or failed."""
        with self._lock:
            self._sending -= 1

    def sent(self, flight: Flight, count: int) -> None:
        """So many more of its bytes left for the store.

        Raises:
            Superseded: the rest need not.
            Abandoned: the save is over.
        """
        if self.error is not None or flight.index in self.crcs:
            raise Superseded
        self.effort.check()
        flight.moved = self.effort.now()
        flight.sent += count
        if self._progress is not None:
            self._progress("writing", self._left(), self._total)

    def laggard(self) -> Flight | None:
        """For a hand with nothing else to do: a put that lags, once; None when all objects are there, or nobody is in a hurry."""
        with self._lock:
            while self.error is None and not self._whole() and self.effort.left() is not None:
                now = self.effort.now()
                usual = statistics.median(self._took) if len(self._took) >= 3 else float("inf")
                for flight in self._flights:
                    late = now - flight.began > max(1.0, _TIMES * usual)
                    if not flight.doubled and (late or now - flight.moved > _STILL):
                        flight.doubled = True
                        return flight
                self._lock.wait(_LOOK)
        return None

    def done(self, flight: Flight) -> None:
        with self._lock:
            if flight in self._flights:
                self._flights.remove(flight)
            if flight.index in self.crcs:
                return
            self.crcs[flight.index] = flight.crcs
            self._bytes += self.objects[flight.index].size
            self._took.append(self.effort.now() - flight.began)
            whole = self._whole()
            self._lock.notify_all()
        if self._progress is not None and self.error is None:
            self._progress("written" if whole else "writing", self._left(), self._total)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
            self._lock.notify_all()

    def hear(self, error: StoreError) -> None:
        """The store failed for now."""
        self._said = str(error)

    def ended(self) -> None:
        with self._lock:
            self._hands -= 1
        self.changed.set()

    # --- inside ---

    def _whole(self) -> bool:
        return len(self.crcs) == len(self.objects)

    def _left(self) -> int:
        """Bytes that left for the store: of what is there, and of what is on its way."""
        flights = [flight for flight in list(self._flights) if flight.index not in self.crcs]
        return self._bytes + sum(min(flight.sent, len(flight.data)) for flight in flights)
