"""The transfer: the requests of one save on their way.

The threads of a save share a `Transfer`: the queue of objects, the puts in flight, the entries behind them, what is in doubt, and
the first error. `save_queue` is the saving thread's side of it.

A store that was away, or failed for a moment, may have lost what it had confirmed. So a transient failure that any request of the
save meets puts everything in doubt that the store has confirmed: objects are looked at and put again if they are lost, entries are put
again. An entry is put only while nothing that it names is in doubt.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from ....providers.errors import CorruptError, StoreError, UnavailableError
from ...checkpoint.format.keys import CheckpointName
from ...state.state_tensor import Tier
from ..cancel_scope import Abandoned, CancelScope, with_last
from ..plan.throughput import StoreLink
from ..plan.write_plan import ALL, StoredObject, WriteProgress, WrittenState
from .object_in_flight import ObjectInFlight, Shift
from .queue_entry import EntryState, QueueEntry

#: Called with a phase, the bytes that have left for the store, and the bytes of the complete save. It must not wait.
Progress = Callable[[str, int, int], None]

#: Number of peers that give the usual time, and their least size as a share of the object's: a small object tells nothing of a
#: large one.
_ENOUGH, _PEER = 3, 0.5
#: Seconds between two checks for a put that lags.
_LOOK = 0.1


class Superseded(Exception):
    """The object is in the store already, or has to wait, or the save is over. The put must send no more bytes."""


class Doubted(Exception):
    """The store may have lost objects, which are looked at first."""


class Transfer:
    """The objects and entries of one save, as its threads share them."""

    def __init__(
        self,
        write_progress: WriteProgress,
        name: CheckpointName,
        scope: CancelScope,
        progress: Progress | None,
        link: StoreLink,
    ) -> None:
        self.write_progress = write_progress
        self.name = name
        self.scope = scope
        #: The scope of the workers, which ends with the first error of the part too.
        self.part = scope.part(math.inf)
        self.error: BaseException | None = None
        #: Set when the saving thread has something to see to.
        self.changed = threading.Event()
        #: How often a request of the save failed transiently.
        self.failures = 0
        self.entries: list[QueueEntry] = []
        self._lock = threading.Condition()
        self._last_error = ""
        self._progress = progress
        self._link = link
        self._shift = Shift()
        self._tiers: Sequence[Tier] = ()
        self._missing: Sequence[int] = ()
        self._queue: deque[int] = deque()
        self._begun = False
        self._bytes = self._before = self._total = self._put = 0
        #: Bytes of objects that the save refers to: they are in the store, and are never sent.
        self._spared = 0
        #: Whether a worker is checking the doubted objects, and whether it must do so before anything else.
        self._looking = self._look_first = False
        self._flights: list[ObjectInFlight] = []
        #: Since when no object is on its way; None while one is.
        self._quiet: float | None = scope.now()
        #: Since when the store refuses, so that no byte moves; None if it does not.
        self._refused: float | None = None
        #: When the part began.
        self._start = scope.now()
        #: Bytes and seconds of the put of each object that is in the store.
        self._took: list[tuple[int, float]] = []
        write_progress.leaving = {}

    # --- called by the saving thread ---

    def begin(self, tiers: Sequence[Tier]) -> int:
        """Begin a part of the save: its objects are those of these tiers. Return the bytes to put.

        An error of an earlier part does not count any more, and neither do its puts.
        """
        with self._lock:
            objects = self.write_progress.write_plan.objects
            self.error, self._shift, self._tiers, self._looking = None, Shift(), tiers, False
            self.part, self._start = self.scope.part(math.inf), self.scope.now()
            self._missing = self.write_progress.missing(tiers)
            self._queue = deque(self._missing)
            nbytes = sum(objects[index].size for index in self._missing)
            self._bytes, self._put = self.write_progress.bytes_of(ALL), self.write_progress.put_of(ALL)
            self._total = nbytes + self._bytes
            return nbytes

    def idle(self) -> int:
        """Return how many workers the objects need, if none works on them; else 0."""
        with self._lock:
            if self.error is not None or not self.over():
                return 0
            return len(self._queue) if self._queue else int(bool(self.write_progress.doubted))

    def staff(self, workers: int) -> Shift:
        """Note that these workers begin."""
        now = self.scope.now()
        with self._lock:
            self._shift = Shift(workers)
            self._quiet = now
            self._before, self._spared = self._bytes, 0  # the link counts the bytes of this shift
        self._link.begin(now)
        return self._shift

    def over(self) -> bool:
        """Return whether every worker is free again, apart from those that are left behind.

        A worker is left behind if all objects are in the store and it still sends one of them.
        """
        shift = self._shift
        return shift.workers == 0 or (self.whole() and shift.workers == shift.sending)

    def rest(self) -> None:
        """End the shift: give up its running puts, and do not count them for the link."""
        with self._lock:
            self._shift = Shift()
        self._link.end(self.scope.now(), whole=self.whole())

    def whole(self) -> bool:
        """Return whether all objects of the part are in the store, and none of the save is in doubt."""
        stored, doubted = self.write_progress.stored, self.write_progress.doubted
        return not doubted and not self._looking and all(index in stored for index in self._missing)

    def settled(self) -> bool:
        """Return whether nothing that the store has confirmed is in doubt, or is put again."""
        again = (EntryState.DOUBTED, EntryState.SENDING)
        return self.whole() and not any(each.state in again and not each.tolerated for each in self.entries)

    def due(self) -> QueueEntry | None:
        """Return the next entry whose turn has come. One at a time is on its way, but those that may fail hold up nothing."""
        with self._lock:
            if any(each.state is EntryState.SENDING and not each.tolerated for each in self.entries):
                return None
            for entry in self.entries:
                if entry.state not in (EntryState.WAITING, EntryState.DOUBTED):
                    continue
                if (error := next((each.error for each in entry.after if each.error), None)) is not None:
                    entry.fail(error)
                elif all(each.stored for each in entry.after) and (
                    not entry.tiers or (not self._looking and self.write_progress.has(entry.tiers))
                ):
                    return entry
        return None

    def written(self, name: CheckpointName, tiers: Sequence[Tier]) -> WrittenState:
        """Return the content of a manifest, as `WriteProgress.written`.

        Raises:
            Doubted: the store has failed a moment ago.
        """
        with self._lock:
            if not self.write_progress.has(tiers):
                raise Doubted
            return self.write_progress.written(name, tiers)

    def fatal(self) -> QueueEntry | None:
        """Return an entry whose failure ends the save; None if there is none."""
        return next((each for each in self.entries if each.fatal), None)

    def amount(self, now: float) -> str:
        """Return how much of the save has left for the store, and how fast, for a person."""
        left, seconds = self._left(), max(now - self._start, 1e-3)
        sent = max(0, self.write_progress.put_of(ALL) - self._put + left - self._bytes)
        mib = 2**20
        return f"{left / mib:.1f} of {self._total / mib:.1f} MiB at {sent / seconds / mib:.1f} MiB/s"

    def call_off(self, why: Abandoned) -> None:
        """Call the transfer off: no thread begins anything more, and the results of running work do not count."""
        self.fail(with_last(why, self._last_error))

    # --- called by any thread ---

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
            self._lock.notify_all()
        self.part.abandon(str(error))
        self.changed.set()

    def hear(self, error: StoreError) -> None:
        """Note a failure of the store: everything that it has confirmed is in doubt, except after a refusal."""
        progress = self.write_progress
        with self._lock:
            self._last_error = str(error)
            if not error.transient and not isinstance(error, CorruptError):
                self._refused = self.scope.now()
                return
            self.failures += 1
            progress.doubted.update(progress.stored.keys() - progress.spared)
            # A store that is busy was most likely not away: one look before the manifest is enough.
            self._look_first |= isinstance(error, UnavailableError)
            for entry in self.entries:
                if entry.state is EntryState.STORED:
                    entry.state = EntryState.DOUBTED
            self._lock.notify_all()
        self.changed.set()

    def entry_ended(
        self, entry: QueueEntry, scope: CancelScope, error: BaseException | None, failures: int
    ) -> None:
        """Note the end of an entry's request.

        Args:
            scope: the scope of the request. Its answer does not count if the entry has been given up since.
            failures: the number of `failures` when its last try began.
        """
        with self._lock:
            if entry.state is not EntryState.SENDING or entry.scope is not scope:
                return
            if isinstance(error, Doubted):
                entry.state = EntryState.WAITING
            elif error is not None:
                entry.fail(error)
            else:
                entry.at = self.scope.now()
                entry.state = EntryState.STORED if failures == self.failures else EntryState.DOUBTED
        self.changed.set()

    # --- called by the workers ---

    def ended(self, shift: Shift) -> None:
        """Note that a worker is free again."""
        with self._lock:
            shift.workers -= 1
        self.changed.set()

    def next(self, shift: Shift) -> int | None:
        with self._lock:
            return self._queue.popleft() if shift is self._shift and self.more() else None

    def more(self) -> bool:
        """Return whether there is an object whose put may begin now."""
        if self.error is not None or not self._queue:
            return False
        return not self.write_progress.waits(self.write_progress.write_plan.objects[self._queue[0]].tier)

    def current(self, shift: Shift) -> bool:
        """Return whether this shift still works."""
        return shift is self._shift and self.error is None

    def doubted(self) -> dict[int, StoredObject]:
        """Return the objects to check again; for one worker at a time, which then calls `looked`."""
        progress = self.write_progress
        with self._lock:
            if self._looking or self.error is not None or not (self._look_first or not self.more()):
                return {}
            self._looking = bool(progress.doubted)
            return {index: progress.stored[index] for index in progress.doubted}

    def looked(self, failures: int, listed: Collection[int], lost: Collection[int]) -> None:
        """Note that `doubted` objects were listed, and queue the lost ones of this part again.

        Args:
            failures: the number of `failures` when the listing began.
            listed: indices of these objects. Those that became doubted meanwhile stay so.
            lost: indices of the lost objects.
        """
        progress = self.write_progress
        with self._lock:
            self._looking = False
            if self.failures == failures:  # else the store has failed again
                progress.doubted.difference_update(listed)
                self._look_first &= bool(progress.doubted)
                for index in lost:
                    nbytes = progress.write_plan.objects[index].size
                    self._bytes -= nbytes
                    self._before -= nbytes
                    progress.lose(index)
                objects = progress.write_plan.objects
                mine = [index for index in sorted(lost) if objects[index].tier in self._tiers]
                self._missing = [*self._missing, *(index for index in mine if index not in self._missing)]
                self._queue.extendleft(reversed(mine))
        self._tell()

    def gave_up_looking(self) -> None:
        with self._lock:
            self._looking = False

    def place(self, index: int) -> CheckpointName:
        """Return the checkpoint whose directory gets an object: the first one, where a manifest may name it already."""
        lost = self.write_progress.lost.get(index)
        return self.name if lost is None else lost.at

    def filled(self, index: int, crcs: list[int]) -> bool:
        """Return whether these CRCs of an object's pieces are those with which it was put before, if it was."""
        lost = self.write_progress.lost.get(index)
        return lost is None or lost.crcs == crcs

    def starts(
        self, index: int, data: memoryview, crc32: int, stored: StoredObject, shift: Shift | None = None
    ) -> ObjectInFlight:
        """Note that a put begins, and return it. The first put is the save's first byte on its way."""
        now = self.scope.now()
        shift = self._shift if shift is None else shift
        flight = ObjectInFlight(index, data, crc32, stored, now, now, shift=shift, failures=self.failures)
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
        now = self.scope.now()
        with self._lock:
            if self._refused is not None:
                # The others resume now too. None of them lags, and the link is as fast as before.
                self._link.paused(now - self._refused)
                self._refused = None
                for each in self._flights:
                    each.began = each.moved = now
            flight.sent, flight.began, flight.moved, flight.failures = 0, now, now, self.failures
            self.write_progress.leaving.pop(flight.index, None)
            flight.shift.sending += 1

    def back(self, flight: ObjectInFlight) -> None:
        """Note that the store has answered or failed."""
        with self._lock:
            flight.shift.sending -= 1

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
            if not self.current(flight.shift):
                raise Superseded
            leaving = self.write_progress.leaving
            leaving[flight.index] = max(leaving.get(flight.index, 0), min(flight.sent, len(flight.data)))
            if self._refused is not None:
                self._refused = now
            left = self._left()
            self._link.sent(left - self._before - self._spared, now)
            if flight.sent >= len(flight.data):
                self._lock.notify_all()  # a worker may wait for the last weights to leave, to begin the moments
        if self._progress is not None:
            self._progress("writing", left, self._total)

    def laggard(self, shift: Shift) -> ObjectInFlight | None:
        """Wait for a put that lags and return it, once for each put; for a worker without other work.

        Return None if all objects are in the store, if there is `more` to do, or if all are begun and there is no deadline.
        """
        with self._lock:
            while self.current(shift) and not self.whole() and not self.more():
                hurried, now = self.scope.left() is not None, self.scope.now()
                if (not hurried and not self._queue) or (self.write_progress.doubted and not self._looking):
                    return None
                for flight in self._flights:
                    if not hurried or self._refused is not None or flight.doubled:
                        continue
                    if flight.lags(now, self._usual(flight)):
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
            if flight.failures != self.failures:  # another request failed behind its answer
                self.write_progress.doubted.add(flight.index)
            self._lands(flight.index, flight.stored)
        self._tell()

    def dropped(self, flight: ObjectInFlight) -> None:
        """Note that the put was superseded. If its object only has to wait, its turn comes later."""
        with self._lock:
            if flight not in self._flights:
                return
            self._gone(flight)
            self.write_progress.leaving.pop(flight.index, None)
            taken = flight.index in self.write_progress.stored or flight.index in self._queue
            if self.current(flight.shift) and not taken:
                self._queue.append(flight.index)

    def spare(self, index: int, known: StoredObject) -> None:
        """Note that an earlier save has put the object, so that this save refers to it."""
        with self._lock:
            if self._quiet is not None:  # reading and hashing the object is not the link's time
                began, self._quiet = self._quiet, self.scope.now()
                self._link.paused(self._quiet - began)
            self._spared += self.write_progress.write_plan.objects[index].size
            self.write_progress.spared.add(index)
            self._lands(index, known)
        self._tell()

    def _lands(self, index: int, stored: StoredObject) -> None:
        self.write_progress.stored[index] = stored
        self._bytes += self.write_progress.write_plan.objects[index].size

    # --- inside ---

    def _tell(self) -> None:
        """Report that an object has arrived in the store or is lost."""
        with self._lock:
            complete = self.whole()
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
        if not self.current(flight.shift) or flight.index in self.write_progress.stored:
            return True
        return self.write_progress.holds_back(self.write_progress.write_plan.objects[flight.index].tier)

    def _left(self) -> int:
        """Return the bytes that have left for the store: of the objects in the store, and of those on their way."""
        flights = [flight for flight in list(self._flights) if flight.index not in self.write_progress.stored]
        return self._bytes + sum(min(flight.sent, len(flight.data)) for flight in flights)
