"""The transfer: the objects of one save on their way into the store.

The threads of a save share a `Transfer`: the queue of objects, the puts in flight, what is in doubt, and the first error. The saving
thread begins its parts and has workers begin; each worker puts objects while there are any. Near a deadline an idle worker sends a
put that lags behind its peers a second time, from a copy. The first to arrive counts; both are the same bytes under the same key.

A store that was away, or failed for a moment, may have lost what it had confirmed. So a transient failure that any request of the
save meets puts everything in doubt that the store has confirmed. An object of an earlier save is in doubt from the beginning. A
worker lists the doubted objects as soon as the store answers, or reads a byte of each, and those that are lost are put again. The
entries behind the objects (`save_queue`) are put again.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Generic

from ....providers.errors import CorruptError, SpotguardError, StoreError, UnavailableError
from ...checkpoint.format.crc import crc32
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from ...checkpoint.tier import Tier
from ..cancel_scope import CancelScope
from ..plan.plan_cache import WritePlanCache
from ..plan.write_plan import ALL, WEIGHTS, StoredObject, WriteProgress
from .object_in_flight import ObjectInFlight, ObjectsInFlight, Progress, Shift, Superseded
from .recheck import Recheck
from .retry import retry
from .uploader import Uploader
from .workers import B, TaskGroup

log = logging.getLogger("spotguard")

#: Writes the bytes of the object with this index into a buffer, and returns the CRCs of its pieces.
Fill = Callable[[int, B], list[int]]

#: Seconds between two checks for a put that lags.
_LOOK = 0.1


class StateChanged(SpotguardError):
    """The state moved during the read. The message names the part that moved."""


class Transfer(TaskGroup, Generic[B]):
    """The objects of one save, as its threads share them.

    Args:
        fill: writes the bytes of an object into a worker's buffer.
        moved: called after each `fill`. It returns "" or what has moved since the boundary.
        plans: knows the objects that earlier saves have put, and hears of those that are gone.
    """

    def __init__(
        self,
        uploads: Uploader[B],
        write_progress: WriteProgress,
        name: CheckpointName,
        scope: CancelScope,
        fill: Fill[B],
        moved: Callable[[B], str],
        plans: WritePlanCache,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(scope)
        self.write_progress = write_progress
        self.name = name
        self.uploads = uploads
        self._fill = fill
        self._moved = moved
        self._plans = plans
        #: Called with each failure of the store. It calls `doubt`.
        self.heard: Callable[[StoreError], None] = lambda error: None
        self._working = False
        #: The bytes of the present part; None: it tells nothing of the width.
        self._part: int | None = None
        self._tiers: Sequence[Tier] = ()
        self._missing: Sequence[int] = ()
        self._queue: deque[int] = deque()
        #: Whether a worker is checking the doubted objects, and whether it must do so before anything else.
        self._looking = self._look_first = False
        self.flights = ObjectsInFlight(self, write_progress, uploads.link, progress)

    # --- called by the saving thread ---

    def begin(self, tiers: Sequence[Tier] = ALL) -> None:
        """Begin a part of the save: its objects are the missing ones of these tiers.

        An error of an earlier part does not count any more, and neither do its puts.
        """
        self.rest()
        with self.lock:
            self.error, self._tiers, self._looking = None, tiers, False
            self.part = self.scope.part(math.inf)
            self._missing = self.write_progress.missing(tiers)
            self._queue = deque(self._missing)
            objects = self.write_progress.write_plan.objects
            self._part = sum(objects[index].size for index in self._missing)
            self.flights.begin_part(self._part)

    def advance(self) -> None:
        """End the shift if its workers are free, and have others begin if there is work for them.

        Raises:
            Exception: the first error of a worker.
            CheckpointError: no memory or no thread is left.
        """
        if self._over():
            self.rest(learn=True)
        if self.error is not None and not self._working:
            raise self.error
        if not (count := self._needed()):
            return
        uploads = self.uploads
        workers = uploads.workers(count, self.write_progress.write_plan.size, self.scope)[:count]
        if self._part is not None and len(workers) != uploads.width.count:
            self._part = None
        shift = self.staff(len(workers))
        for worker in workers:
            worker.give(partial(self._put_objects, shift), partial(self._leaves, shift))

    def stirs(self) -> bool:
        """Return whether `advance` has something to do."""
        return self._over() or self._needed() > 0

    def staff(self, workers: int) -> Shift:
        """Note that these workers begin."""
        self._working = True
        return self.flights.begin_shift(workers)

    def rest(self, *, learn: bool = False) -> None:
        """End the shift: give up its running puts, and do not count them for the link.

        Args:
            learn: the part is over, and tells what its width was worth.
        """
        if not self._working:
            return
        if learn and self._part is not None and self.error is None:
            self.uploads.width.learn(self._part, self.flights.seconds)
            self._part = None
        self._working = False
        self.flights.end_shift(whole=self.sound())

    def whole(self) -> bool:
        """Return whether all objects that were begun are in the store, none is in doubt, and no worker is needed."""
        return self.sound() and (not self._working or self._over())

    def sound(self) -> bool:
        """Return whether all objects of the part are in the store, and none of the save is in doubt."""
        stored, doubted = self.write_progress.stored, self.write_progress.doubted
        return not doubted and not self._looking and all(index in stored for index in self._missing)

    def has(self, tiers: Sequence[Tier]) -> bool:
        """Return whether all objects of these tiers are in the store, and nothing in it is looked at."""
        return not tiers or (not self._looking and self.write_progress.has(tiers))

    def amount(self) -> str:
        """Return how much of the save has left for the store, and how fast, for a person."""
        return self.flights.amount()

    # --- called by any thread ---

    def doubt(self, error: StoreError) -> bool:
        """Doubt all objects that the store has confirmed, as it has failed. Return False after a refusal, which loses nothing."""
        progress = self.write_progress
        with self.lock:
            self.last_error = str(error)
            if not error.transient and not isinstance(error, CorruptError):
                return False
            progress.failures += 1
            progress.doubted.update(progress.stored)
            # A store that is busy was most likely not away: one look before the manifest is enough.
            self._look_first |= isinstance(error, UnavailableError)
            self.lock.notify_all()
        return True

    def more(self) -> bool:
        """Return whether there is an object whose put may begin now."""
        if self.error is not None or not self._queue:
            return False
        return not self.write_progress.waits(self.write_progress.write_plan.objects[self._queue[0]].tier)

    # --- a worker's thread ---

    def _put_objects(self, shift: Shift, buffer: B) -> None:
        """Put objects, while there are any."""
        try:
            while self.flights.current(shift):
                if doubted := self.doubted():
                    self._look_again(doubted)
                elif (index := self._next(shift)) is not None:
                    self._put_object(shift, buffer, index)
                elif (flight := self._laggard(shift)) is not None:
                    self.send_again(shift, buffer, flight)
                elif not (self.more() or self._must_look()):
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            if self.flights.current(shift):
                self.fail(error)

    def _leaves(self, shift: Shift) -> None:
        """Note that a worker is free again."""
        with self.lock:
            shift.workers -= 1
        self.changed.set()

    def _next(self, shift: Shift) -> int | None:
        with self.lock:
            return self._queue.popleft() if self.flights.current(shift) and self.more() else None

    def _put_object(self, shift: Shift, buffer: B, index: int) -> None:
        planned, lost = self.write_progress.write_plan.objects[index], self.write_progress.lost.get(index)
        crcs = self._fill(index, buffer)
        if why := self._moved(buffer):
            raise StateChanged(why)
        if lost is not None and lost.crcs != crcs:
            raise StateChanged(f"object {index} was changed before spotguard could upload it a second time")
        data = buffer.view(0, planned.size)
        # A lost object returns to the directory where a manifest may name it already.
        stored = StoredObject(crcs, self.name if lost is None else lost.at)
        if planned.tier is Tier.FROZEN:
            stored.digest = hashlib.sha256(data).digest()
            if lost is None and (known := self._plans.as_before(index, stored)) is not None:
                self.flights.spare(index, known)
                self._lands(index)
                return
        self._put(self.flights.starts(index, data, planned.crc32(crcs, data), stored, shift))

    def _laggard(self, shift: Shift) -> ObjectInFlight | None:
        """Wait for a put that lags and return it, once for each put; for a worker without other work.

        Return None if all objects are in the store, if there is `more` to do, or if all are begun and there is no deadline.
        """
        with self.lock:
            while self.flights.current(shift) and not self.sound() and not self.more():
                hurried = self.scope.left() is not None
                if (not hurried and not self._queue) or self._must_look():
                    return None
                if hurried and (flight := self.flights.laggard()) is not None:
                    return flight
                self.lock.wait(_LOOK)
        return None

    def send_again(self, shift: Shift, buffer: B, flight: ObjectInFlight) -> None:
        """Send a lagging object a second time, from a copy.

        The first put may have arrived meanwhile, and its buffer may be in use again. Then the copy is useless.
        """
        copied = buffer.view(0, len(flight.data))
        copied[:] = flight.data
        if crc32(copied) == flight.crc32:
            log.debug("object %d lags behind, spotguard sends it again", flight.index)
            self._put(flight.double(copied, self.scope.now(), shift))

    def _put(self, flight: ObjectInFlight) -> None:
        key, store, flights = self._key(flight.index, flight.stored.at), self.uploads.store, self.flights

        def put(left: float | None) -> None:
            flights.again(flight)
            try:
                sent = partial(flights.sent, flight)
                store.put(key, flight.data, timeout=left, crc32=flight.crc32, sent=sent)
            finally:
                flights.back(flight)

        def hear(error: StoreError) -> None:
            if not error.transient and not isinstance(error, CorruptError):
                flights.refuse()
            self.heard(error)

        try:
            retry(self.part, put, hear, self.uploads.refusals)
        except Superseded:
            with self.lock:
                if flights.dropped(flight):
                    self._queue_again([flight.index])
            return
        flights.done(flight)
        self._lands(flight.index)

    # --- what is in doubt ---

    def doubted(self) -> dict[int, StoredObject]:
        """Return the objects to check again; for one worker at a time, which then calls `looked`."""
        progress = self.write_progress
        with self.lock:
            if not self._must_look():
                return {}
            self._looking = True
            return {index: progress.stored[index] for index in progress.doubted}

    def _must_look(self) -> bool:
        """Return whether to check the doubted objects now: one look is enough, behind the weights that are still on their way."""
        progress = self.write_progress
        with self.lock:
            if self._looking or self.error is not None or not progress.doubted:
                return False
            return self._look_first or not (self.more() or progress.missing(WEIGHTS))

    def _look_again(self, doubted: dict[int, StoredObject]) -> None:
        """Look for the doubted objects, and have those put again that are lost."""
        progress = self.write_progress
        planned = progress.write_plan.objects
        objects = {
            index: (self._key(index, stored.at), planned[index].size) for index, stored in doubted.items()
        }
        look = Recheck(self.uploads.store, objects, progress, self.scope.now)
        try:
            retry(self.part, look, self.heard, self.uploads.refusals)
        except BaseException:
            with self.lock:
                self._looking = False
            raise
        if lost := look.lost:
            log.warning("the store has lost %d objects of this save: spotguard uploads them again", len(lost))
        self._report_damage({index: doubted[index] for index in lost if progress.borrows(index)})
        self.looked(look.failures, look.answers, lost)

    def _report_damage(self, gone: dict[int, StoredObject]) -> None:
        """Report the checkpoints that have lost these objects. No save refers to an object of theirs from now on."""
        for at in {stored.at for stored in gone.values()}:
            keys = [self._key(index, at) for index, stored in gone.items() if stored.at == at]
            self._plans.damage.add(at, f"object {keys[0]} is missing, and frozen tensors are in it", keys)

    def looked(self, failures: int, listed: Collection[int], lost: Collection[int]) -> None:
        """Note that `doubted` objects were looked for, and queue the lost ones of this part again.

        Args:
            failures: the number of `failures` when the look began.
            listed: indices of these objects; those that became doubted meanwhile stay so.
            lost: indices of the lost objects.
        """
        progress, objects = self.write_progress, self.write_progress.write_plan.objects
        self.flights.pause()
        with self.lock:
            self._looking = False
            if progress.failures == failures:  # else the store has failed again
                # An earlier part's look may have found some.
                lost = [index for index in lost if index in progress.doubted]
                progress.doubted.difference_update(listed)
                self._look_first &= bool(progress.doubted)
                for index in lost:
                    self.flights.lose(index)
                mine = [index for index in sorted(lost) if objects[index].tier in self._tiers]
                self._missing = [*self._missing, *(index for index in mine if index not in self._missing)]
                self._queue_again(mine)
        self._tell()

    # --- inside ---

    def _queue_again(self, indices: Collection[int]) -> None:
        """Queue objects where the order of the puts has them: moments at the head may wait for weights that were lost."""
        self._queue = deque(sorted({*self._queue, *indices}))

    def _over(self) -> bool:
        """Return whether every worker of the shift is free again, apart from those that are left behind.

        A worker is left behind if all objects are in the store and it still sends one of them.
        """
        shift = self.flights.shift
        return self._working and (shift.workers == 0 or (shift.workers == shift.sending and self.sound()))

    def _needed(self) -> int:
        """Return how many workers the objects need, if none works on them; else 0."""
        with self.lock:
            if self.error is not None or self._working:
                return 0
            return len(self._queue) if self._queue else int(bool(self.write_progress.doubted))

    def _lands(self, index: int) -> None:
        """Report that an object is in the store. Behind the last of the weights, their manifest waits only for what is in doubt."""
        progress = self.write_progress
        with self.lock:
            if progress.doubted and progress.write_plan.objects[index].tier in WEIGHTS:
                self._look_first |= not progress.missing(WEIGHTS)
        self._tell()

    def _tell(self) -> None:
        """Report that an object has arrived in the store or is lost."""
        with self.lock:
            whole = self.sound()
            self.lock.notify_all()
        self.changed.set()
        self.flights.tell("written" if whole else "writing")

    def _key(self, index: int, at: CheckpointName) -> str:
        write_plan = self.write_progress.write_plan
        return checkpoint_prefix(self.uploads.run_id, at) + object_name(
            write_plan.rank, write_plan.world, index
        )
