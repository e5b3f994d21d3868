"""The transfer: the objects of one save on their way.

The writer's workers share a `Transfer`: the queue of objects, the puts in flight, their progress, and the first error. The
thread that started the transfer has a `TransferHandle`.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ....providers.errors import StoreError, UnavailableError
from ...checkpoint.format.keys import CheckpointName
from ..cancel_scope import Abandoned, CancelScope
from ..plan.throughput import StoreLink
from ..plan.write_plan import ALL, StoredObject, WriteProgress

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
#: Seconds between two checks for a put that lags.
_LOOK = 0.1


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
    #: A second worker sends the object too.
    doubled: bool = False

    def double(self, data: memoryview, now: float) -> ObjectInFlight:
        """Return a second put of the same object, from a copy."""
        return ObjectInFlight(self.index, data, self.crc32, self.stored, now, now)

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


class Superseded(Exception):
    """The object is in the store already, or has to wait, or the save is over. The put must send no more bytes."""


class StoreRequest:
    """A request that several workers run for a waiting thread, until it calls the request off."""

    def __init__(self, workers: int, scope: CancelScope) -> None:
        self.scope = scope
        self.error: BaseException | None = None
        #: Set when the request is `over`.
        self.changed = threading.Event()
        self._lock = threading.Condition()
        self._workers = workers
        self._last_error = ""

    def over(self) -> bool:
        """Return whether every worker is free again."""
        return self._workers == 0

    def call_off(self, why: Abandoned) -> None:
        """Call the request off: no worker begins anything more, and the results of running work do not count."""
        self.fail(
            Abandoned(f"{why}; the last error of the store: {self._last_error}") if self._last_error else why
        )

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
            self._lock.notify_all()

    def hear(self, error: StoreError) -> None:
        """Note a transient failure of the store."""
        self._last_error = str(error)

    def ended(self) -> None:
        with self._lock:
            self._workers -= 1
        self.changed.set()


class Transfer(StoreRequest):
    """The objects that a save is putting, as its workers share them."""

    def __init__(
        self,
        write_progress: WriteProgress,
        missing: Sequence[int],
        name: CheckpointName,
        workers: int,
        scope: CancelScope,
        progress: Progress | None,
        link: StoreLink,
    ) -> None:
        super().__init__(workers, scope)
        self.write_progress = write_progress
        self.name = name
        self._progress = progress
        #: Number of workers that are inside a call of the store.
        self._sending = 0
        self._missing = missing
        self._queue = deque(missing)
        self._begun = False
        objects = self._objects = write_progress.write_plan.objects
        write_progress.leaving = {}
        self._bytes = write_progress.bytes_of(ALL)
        self._before = self._bytes
        self._total = sum(objects[index].size for index in missing) + self._bytes
        #: Bytes of objects that the save refers to: they are in the store, and are never sent.
        self._spared = 0
        self._link = link
        #: How often the store was away.
        self.outages = 0
        #: Whether a worker is checking the doubted objects.
        self._looking = False
        self._flights: list[ObjectInFlight] = []
        #: Since when no object is on its way; None while one is.
        self._quiet: float | None = scope.now()
        #: Bytes and seconds of the put of each object that is in the store.
        self._took: list[tuple[int, float]] = []

    def over(self) -> bool:
        """Return whether every worker is free again, apart from those that are left behind.

        A worker is left behind if all objects are in the store and it still sends one of them.
        """
        return self._workers == 0 or (self._whole() and self._workers == self._sending)

    def at_rest(self, now: float) -> None:
        """End the transfer when no thread waits any more: give up the running puts, and do not count them for the link."""
        with self._lock:
            if self.error is None:
                self.error = Superseded()
            self._link.end(now, whole=self._whole())

    # --- called by the workers ---

    def next(self) -> int | None:
        with self._lock:
            return self._queue.popleft() if self.more() else None

    def more(self) -> bool:
        """Return whether there is an object whose put may begin now."""
        if self.error is not None or not self._queue:
            return False
        return not self.write_progress.waits(self._objects[self._queue[0]].tier)

    def hear(self, error: StoreError) -> None:
        super().hear(error)
        if isinstance(error, UnavailableError):
            with self._lock:
                self.outages += 1
                self.write_progress.doubted.update(
                    self.write_progress.stored.keys() - self.write_progress.spared
                )

    def doubted(self) -> dict[int, StoredObject]:
        """Return the objects to check again; for one worker at a time, which then calls `looked`."""
        with self._lock:
            if self._looking or self.error is not None:
                return {}
            self._looking = bool(self.write_progress.doubted)
            return {index: self.write_progress.stored[index] for index in self.write_progress.doubted}

    def looked(self, outages: int, lost: Collection[int]) -> None:
        """Note that the `doubted` objects were listed, and queue the lost ones again.

        Args:
            outages: the number of outages when the listing began.
            lost: indices of the lost objects.
        """
        with self._lock:
            self._looking = False
            if self.outages != outages:
                return  # the store was away again
            self.write_progress.doubted.clear()
            for index in lost:
                self._bytes -= self._objects[index].size
                del self.write_progress.stored[index]
                self.write_progress.leaving.pop(index, None)
            self._missing = [*self._missing, *(index for index in lost if index not in self._missing)]
            self._queue.extendleft(sorted(lost, reverse=True))
        self._tell()

    def starts(self, index: int, data: memoryview, crc32: int, stored: StoredObject) -> ObjectInFlight:
        """Note that a put begins, and return it. The first put is the save's first byte on its way."""
        now = self.scope.now()
        flight = ObjectInFlight(index, data, crc32, stored, now, now)
        with self._lock:
            first, self._begun = not self._begun, True
            self._flights.append(flight)
            self._quiet = None
        if first and self.error is None and self._progress is not None:
            self._progress("first-byte", self._bytes, self._total)
        return flight

    def again(self, flight: ObjectInFlight) -> None:
        """Note that the put starts from its first byte.

        Raises:
            Superseded: the put is not needed.
        """
        if self._superseded(flight):
            raise Superseded
        with self._lock:
            flight.sent, flight.moved = 0, self.scope.now()
            self.write_progress.leaving.pop(flight.index, None)
            self._sending += 1

    def back(self) -> None:
        """Note that the store has answered or failed."""
        with self._lock:
            self._sending -= 1

    def sent(self, flight: ObjectInFlight, count: int) -> None:
        """Note that `count` more bytes of the put have left for the store.

        Raises:
            Superseded: the rest is not needed.
            Abandoned: the save is over.
        """
        if self._superseded(flight):
            raise Superseded
        self.scope.check()
        now = flight.moved = self.scope.now()
        flight.sent += count
        with self._lock:
            if self.error is not None:
                raise Superseded
            leaving = self.write_progress.leaving
            leaving[flight.index] = max(leaving.get(flight.index, 0), min(flight.sent, len(flight.data)))
            left = self._left()
            self._link.sent(left - self._before - self._spared, now)
            if flight.sent >= len(flight.data):
                self._lock.notify_all()  # a worker may wait for the last weights to leave, to begin the moments
        if self._progress is not None:
            self._progress("writing", left, self._total)

    def laggard(self) -> ObjectInFlight | None:
        """Wait for a put that lags and return it, once for each put; for a worker without other work.

        Return None if all objects are in the store, if there is `more` to do, or if all are begun and there is no deadline.
        """
        with self._lock:
            while self.error is None and not self._whole() and not self.more():
                hurried, now = self.scope.left() is not None, self.scope.now()
                if not hurried and not self._queue:
                    return None
                for flight in self._flights:
                    if hurried and not flight.doubled and flight.lags(now, self._usual(flight)):
                        flight.doubled = True
                        return flight
                self._lock.wait(_LOOK)
        return None

    def done(self, flight: ObjectInFlight) -> None:
        with self._lock:
            self._gone(flight)
            if flight.index in self.write_progress.stored:
                return
            self._took.append((len(flight.data), self.scope.now() - flight.began))
        self._lands(flight.index, flight.stored)

    def dropped(self, flight: ObjectInFlight) -> None:
        """Note that the put was superseded. If its object only has to wait, its turn comes later."""
        with self._lock:
            if flight not in self._flights:
                return
            self._gone(flight)
            self.write_progress.leaving.pop(flight.index, None)
            if flight.index not in self.write_progress.stored:
                self._queue.append(flight.index)

    def spare(self, index: int, known: StoredObject) -> None:
        """Note that an earlier save has put the object, so that this save refers to it."""
        with self._lock:
            if self._quiet is not None:  # reading and hashing the object is not the link's time
                began, self._quiet = self._quiet, self.scope.now()
                self._link.paused(self._quiet - began)
            self._spared += self._objects[index].size
            self.write_progress.spared.add(index)
        self._lands(index, known)

    def _lands(self, index: int, stored: StoredObject) -> None:
        with self._lock:
            self.write_progress.stored[index] = stored
            self._bytes += self._objects[index].size
        self._tell()

    # --- inside ---

    def _tell(self) -> None:
        """Report that an object has arrived in the store or is lost."""
        with self._lock:
            complete = self._whole()
            self._lock.notify_all()
        self.changed.set()
        if self._progress is not None and self.error is None:
            self._progress("written" if complete else "writing", self._left(), self._total)

    def _usual(self, flight: ObjectInFlight) -> float | None:
        """Return the median of the seconds that its peers took; None if there are too few peers."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * len(flight.data)]
        return statistics.median(peers) if len(peers) >= _ENOUGH else None

    def _gone(self, flight: ObjectInFlight) -> None:
        if flight in self._flights:
            self._flights.remove(flight)
            if not self._flights:
                self._quiet = self.scope.now()

    def _superseded(self, flight: ObjectInFlight) -> bool:
        if self.error is not None or flight.index in self.write_progress.stored:
            return True
        return self.write_progress.holds_back(self._objects[flight.index].tier)

    def _whole(self) -> bool:
        stored, doubted = self.write_progress.stored, self.write_progress.doubted
        return bool(self._missing) and not doubted and all(index in stored for index in self._missing)

    def _left(self) -> int:
        """Return the bytes that have left for the store: of the objects in the store, and of those on their way."""
        flights = [flight for flight in list(self._flights) if flight.index not in self.write_progress.stored]
        return self._bytes + sum(min(flight.sent, len(flight.data)) for flight in flights)
