"""One save's objects, as the writer's threads share them: the next, those on their way, how far they are, the first error."""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ....providers.errors import StoreError, UnavailableError
from ...checkpoint.format.keys import CheckpointName
from ..cancel_scope import Abandoned, CancelScope
from ..plan.throughput import StoreLink, UploadWidth
from ..plan.write_plan import ALL, StoredObject, WriteProgress

#: Called with a phase, the bytes that left for the store, and the bytes of all. It must not wait.
Progress = Callable[[str, int, int], None]

#: A put lags when none of its bytes moved for so many seconds, and for as long as its peers took; or when it takes so many
#: times what they took, and goes on at a pace at which another would overtake it.
_STILL, _TIMES = 2.0, 2.5
#: The same where nobody knows what is usual: a connection of a slow link brings its MiB in as many seconds.
_STILL_AT_FIRST = 4.0
#: Peers that say what is usual. They are half as large at least: a small object says nothing of a large one.
_ENOUGH, _PEER = 3, 0.5
#: Seconds between two looks for one that lags.
_LOOK = 0.1


@dataclass(slots=True, eq=False)
class ObjectInFlight:
    """One object on its way."""

    index: int
    data: memoryview
    crc32: int
    stored: StoredObject
    began: float
    #: When some of its bytes left last.
    moved: float
    sent: int = 0
    #: Somebody else sends it too.
    doubled: bool = False

    def double(self, data: memoryview, now: float) -> ObjectInFlight:
        """The same object, sent once more from a copy."""
        return ObjectInFlight(self.index, data, self.crc32, self.stored, now, now)

    def lags(self, now: float, usual: float | None) -> bool:
        """Whether it is worth its bytes to send it again, where its peers took so many seconds.

        On a full link connections do not share evenly: one of them is late, and sent again it takes from the link what
        it waits for itself (seen: a tenth of a save at 100 Mbit/s).
        """
        if now - self.moved > (_STILL_AT_FIRST if usual is None else max(_STILL, usual)):
            return True
        if usual is None or now - self.began <= max(1.0, _TIMES * usual):
            return False
        return (len(self.data) - self.sent) * (now - self.began) > usual * self.sent


class Superseded(Exception):
    """The object is in the store already, or has to wait, or the save is over: nothing more of it is to be sent."""


class StoreRequest:
    """What so many `workers` do for a thread that waits for them, until it calls them off."""

    def __init__(self, workers: int, scope: CancelScope) -> None:
        self.scope = scope
        self.error: BaseException | None = None
        #: Set when it is `over`.
        self.changed = threading.Event()
        self._lock = threading.Condition()
        self._workers = workers
        self._said = ""

    def over(self) -> bool:
        """Whether every hand is free again."""
        return self._workers == 0

    def call_off(self, why: Abandoned) -> None:
        """No hand begins anything more, and what they still do counts for nothing."""
        self.fail(Abandoned(f"{why}; the store said last: {self._said}") if self._said else why)

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
            self._workers -= 1
        self.changed.set()


class Transfer(StoreRequest):
    """Objects to be put."""

    def __init__(
        self,
        draft: WriteProgress,
        missing: Sequence[int],
        name: CheckpointName,
        workers: int,
        scope: CancelScope,
        progress: Progress | None,
        link: StoreLink,
    ) -> None:
        super().__init__(workers, scope)
        self.draft = draft
        self.name = name
        self._progress = progress
        #: How many of them are in the store.
        self._sending = 0
        self._missing = missing
        self._queue = deque(missing)
        self._begun = False
        objects = self._objects = draft.write_plan.objects
        draft.leaving = {}
        self._bytes = draft.bytes_of(ALL)
        self._before = self._bytes
        self._total = sum(objects[index].size for index in missing) + self._bytes
        #: Of objects that are referred to: in the store, and never sent.
        self._spared = 0
        self._link = link
        #: How often the store was found away, and whether a hand sees to what is doubted since.
        self.outages = 0
        self._looking = False
        self._flights: list[ObjectInFlight] = []
        #: Since when nothing is on its way; None while something is.
        self._quiet: float | None = scope.now()
        #: Of each object that is there its bytes, and the seconds of its put.
        self._took: list[tuple[int, float]] = []

    def over(self) -> bool:
        """Whether every hand is free again, but for those that still send what is there already: they are left behind."""
        return self._workers == 0 or (self._whole() and self._workers == self._sending)

    def at_rest(self, now: float) -> None:
        """Nobody waits any more: what is still sent is given up, and not the link's doing."""
        with self._lock:
            if self.error is None:
                self.error = Superseded()
            self._link.end(now, whole=self._whole())

    # --- the hands ---

    def next(self) -> int | None:
        with self._lock:
            return self._queue.popleft() if self.more() else None

    def more(self) -> bool:
        """Whether there is one to begin with now."""
        if self.error is not None or not self._queue:
            return False
        return not self.draft.waits(self._objects[self._queue[0]].tier)

    def hear(self, error: StoreError) -> None:
        super().hear(error)
        if isinstance(error, UnavailableError):
            with self._lock:
                self.outages += 1
                self.draft.doubted.update(self.draft.stored.keys() - self.draft.spared)

    def doubted(self) -> dict[int, StoredObject]:
        """For one hand at a time: the objects that are to be looked at again. It says `looked`."""
        with self._lock:
            if self._looking or self.error is not None:
                return {}
            self._looking = bool(self.draft.doubted)
            return {index: self.draft.stored[index] for index in self.draft.doubted}

    def looked(self, outages: int, lost: Collection[int]) -> None:
        """Note that the `doubted` objects were listed, after so many outages: the lost ones are put again."""
        with self._lock:
            self._looking = False
            if self.outages != outages:
                return  # it was away again
            self.draft.doubted.clear()
            for index in lost:
                self._bytes -= self._objects[index].size
                del self.draft.stored[index]
                self.draft.leaving.pop(index, None)
            self._missing = [*self._missing, *(index for index in lost if index not in self._missing)]
            self._queue.extendleft(sorted(lost, reverse=True))
        self._tell()

    def starts(self, index: int, data: memoryview, crc32: int, stored: StoredObject) -> ObjectInFlight:
        """A put begins: the first of them is the save's first byte on its way."""
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
        """It is sent from its beginning.

        Raises:
            Superseded: it need not.
        """
        if self._superseded(flight):
            raise Superseded
        with self._lock:
            flight.sent, flight.moved = 0, self.scope.now()
            self.draft.leaving.pop(flight.index, None)
            self._sending += 1

    def back(self) -> None:
        """The store has answered, or failed."""
        with self._lock:
            self._sending -= 1

    def sent(self, flight: ObjectInFlight, count: int) -> None:
        """So many more of its bytes left for the store.

        Raises:
            Superseded: the rest need not.
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
            leaving = self.draft.leaving
            leaving[flight.index] = max(leaving.get(flight.index, 0), min(flight.sent, len(flight.data)))
            left = self._left()
            self._link.sent(left - self._before - self._spared, now)
            if flight.sent >= len(flight.data):
                self._lock.notify_all()  # who waits for the last of the weights to leave begins with the moments
        if self._progress is not None:
            self._progress("writing", left, self._total)

    def laggard(self) -> ObjectInFlight | None:
        """For a hand with nothing else to do: a put that lags, once; None when all objects are there, or there is `more` to
        do by now, or all are begun and nobody is in a hurry."""
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
            if flight.index in self.draft.stored:
                return
            self._took.append((len(flight.data), self.scope.now() - flight.began))
        self._lands(flight.index, flight.stored)

    def dropped(self, flight: ObjectInFlight) -> None:
        """It was superseded. One that only had to wait has its turn later."""
        with self._lock:
            if flight not in self._flights:
                return
            self._gone(flight)
            self.draft.leaving.pop(flight.index, None)
            if flight.index not in self.draft.stored:
                self._queue.append(flight.index)

    def spare(self, index: int, known: StoredObject) -> None:
        """It is in the store since an earlier save: it is referred to."""
        with self._lock:
            if self._quiet is not None:  # it was read and hashed meanwhile, and that is not the link's time
                began, self._quiet = self._quiet, self.scope.now()
                self._link.paused(self._quiet - began)
            self._spared += self._objects[index].size
            self.draft.spared.add(index)
        self._lands(index, known)

    def _lands(self, index: int, stored: StoredObject) -> None:
        with self._lock:
            self.draft.stored[index] = stored
            self._bytes += self._objects[index].size
        self._tell()

    # --- inside ---

    def _tell(self) -> None:
        """Something is in the store."""
        with self._lock:
            whole = self._whole()
            self._lock.notify_all()
        self.changed.set()
        if self._progress is not None and self.error is None:
            self._progress("written" if whole else "writing", self._left(), self._total)

    def _usual(self, flight: ObjectInFlight) -> float | None:
        """Seconds that its peers took. None: there are too few to say."""
        peers = [seconds for nbytes, seconds in self._took if nbytes >= _PEER * len(flight.data)]
        return statistics.median(peers) if len(peers) >= _ENOUGH else None

    def _gone(self, flight: ObjectInFlight) -> None:
        if flight in self._flights:
            self._flights.remove(flight)
            if not self._flights:
                self._quiet = self.scope.now()

    def _superseded(self, flight: ObjectInFlight) -> bool:
        if self.error is not None or flight.index in self.draft.stored:
            return True
        return self.draft.holds_back(self._objects[flight.index].tier)

    def _whole(self) -> bool:
        stored, doubted = self.draft.stored, self.draft.doubted
        return bool(self._missing) and not doubted and all(index in stored for index in self._missing)

    def _left(self) -> int:
        """Bytes that left for the store: of what is there, and of what is on its way."""
        flights = [flight for flight in list(self._flights) if flight.index not in self.draft.stored]
        return self._bytes + sum(min(flight.sent, len(flight.data)) for flight in flights)


# Objects on their way: who started them waits, may do something else meanwhile, and may call them off.


class TransferHandle:
    """Objects on their way. Used by the thread that started them."""

    def __init__(self, work: Transfer, width: UploadWidth | None, nbytes: int) -> None:
        self._work = work
        self._width = width
        self._nbytes = nbytes
        self._began = work.scope.now()

    def wait(self, turn: Callable[[], bool] = lambda: False, until: float = math.inf) -> bool:
        """Wait until all of them are in the store. False: it is `turn`, or time for something else; they go on meanwhile.

        Raises:
            Abandoned, StoreError, Spoiled, CheckpointError: as `Writer.write`. Nothing goes on.
        """
        work = self._work
        try:
            work.scope.part(until).wait(lambda: work.over() or turn(), work.changed)
        except Abandoned as why:
            if work.scope.abandoned or work.scope.left() == 0.0:
                self.call_off(why)
        if work.error is None and not work.over():
            return False
        now, error = work.scope.now(), work.error
        work.at_rest(now)
        if error is not None:
            raise error
        work.scope.check()
        if self._width is not None:
            self._width.learn(self._nbytes, now - self._began)
        return True

    def wake(self) -> None:
        """Have who waits look whether it is its turn. Any thread."""
        self._work.changed.set()

    def call_off(self, why: Abandoned) -> None:
        """Nothing more of them is sent, and what lands counts for nothing."""
        self._work.call_off(why)
        self._work.at_rest(self._work.scope.now())
