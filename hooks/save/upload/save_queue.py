"""The queue of a save: everything that it puts, in order, from its first object to its marker.

The saving thread uses it. The threads of the uploader put the objects and make the requests. They share the `Transfer`.

Objects go at once. An entry (a claim, a manifest, a marker) goes when its turn comes: `QueueEntry` says behind what. If any request
of the save fails for a moment, nothing goes behind what is in doubt since, until that was looked at or put again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from ....providers.errors import StoreError, UnavailableError
from ...checkpoint.format.keys import CheckpointName
from ...state.state_tensor import Tier
from ..cancel_scope import Abandoned, CancelScope
from ..plan.write_plan import ALL, WriteProgress, WrittenState
from .queue_entry import EntryState, QueueEntry
from .retry import retry, try_once
from .transfer import Doubted, Progress, Transfer
from .uploader import Fill, StateChanged, Uploader
from .workers import B

#: Share of the time to the deadline that an entry with a limit may take, so that time is left to look at what it puts in doubt.
_LIMIT = 0.5


class SaveQueue(Generic[B]):
    """What one save puts. Any number of parts and entries may follow one another.

    Args:
        fill: writes the bytes of an object into a worker's buffer.
        moved: called after each `fill`. It returns "" or what has moved since the boundary.
    """

    def __init__(
        self,
        uploads: Uploader[B],
        write_progress: WriteProgress,
        name: CheckpointName,
        scope: CancelScope,
        fill: Fill[B],
        moved: Callable[[B], str],
        progress: Progress | None = None,
    ) -> None:
        self.store = uploads.store
        self.scope = scope
        self.write_progress = write_progress
        self._uploads = uploads
        self._fill = fill
        self._moved = moved
        self._work = Transfer(write_progress, name, scope, progress, uploads.link)
        #: The bytes of the present part, and when its first shift began. None: its width is known.
        self._part: tuple[int, float] | None = None
        self._working = False

    @property
    def failures(self) -> int:
        """How often a request of the save failed transiently."""
        return self._work.failures

    def objects(self, tiers: Sequence[Tier] = ALL) -> None:
        """Begin to put the missing objects of these tiers; `whole` tells when all of them are in the store."""
        self._end_shift()
        self._part = self._work.begin(tiers), self.scope.now()
        self._advance()

    def add(self, entry: QueueEntry) -> QueueEntry:
        """Queue an entry behind the others."""
        self._work.entries.append(entry)
        return entry

    def whole(self) -> bool:
        """Return whether all objects that were begun are in the store, and none is in doubt."""
        return self._work.whole() and self._work.over()

    def settled(self) -> bool:
        """Return whether nothing that the store has confirmed is in doubt or on its way again."""
        return self._work.settled()

    def written(self, name: CheckpointName, tiers: Sequence[Tier] = ALL) -> WrittenState:
        """Return the content of the manifest of `name`."""
        return self._work.written(name, tiers)

    def wait(self, over: Callable[[], bool], until: float = math.inf) -> bool:
        """Have everything go whose turn comes, until `over()`.

        Args:
            until: monotonic seconds at which the caller has other work.

        Returns:
            Whether it is over; False if `until` came before.

        Raises:
            Abandoned: the deadline passed, or the save was called off. This is raised at once, even if the store hangs.
            StateChanged: the state moved. The bytes that were read must not be kept.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: no memory or no thread is left, or an entry cannot be put.
        """
        part = self.scope.part(until)
        try:
            while True:
                self._advance()
                if over():
                    return True
                limit = min((each.scope.deadline for each in self._sending() if each.scope), default=math.inf)
                try:
                    if part.deadline != (earliest := min(until, limit, self.scope.deadline)):
                        part = self.scope.part(earliest)
                    part.wait(lambda: over() or self._stirs(), self._work.changed)
                except Abandoned:
                    if self.scope.abandoned or self.scope.left() == 0.0:
                        raise
                    self._overdue()
                    if self.scope.now() >= until:
                        return over()
        except Abandoned as why:
            self.call_off(why)
            error = self._work.error
            assert error is not None
            if isinstance(error, Abandoned) and self.scope.left() == 0.0 and not self._work.whole():
                raise Abandoned(f"{error}; {self._work.amount(self.scope.now())}") from None
            raise error from None
        except BaseException as why:
            self._work.fail(why)  # no thread goes on with a save that has failed
            self._end_shift()
            raise

    def settle(self, until: float = math.inf, last: QueueEntry | None = None) -> None:
        """Wait until nothing is in doubt, and `last` has ended.

        Raises:
            Abandoned: `until` came before.
            SpotguardError: as `wait`.
        """
        if not self.wait(lambda: self.settled() and (last is None or last.ended), until):
            raise Abandoned("out of time")

    def ask(
        self,
        what: Callable[[float | None], object],
        scope: CancelScope,
        *,
        again: bool = True,
        workers: int = 1,
    ) -> float:
        """Make a request that puts nothing, as `Uploader.ask`, and then `settle`: the request may have met a failure."""
        seconds = self._uploads.ask(what, scope, again=again, workers=workers, heard=self.hear)
        self.settle(scope.deadline)
        return seconds

    def hear(self, error: StoreError) -> None:
        """Note a transient failure of the store that a request of this save has met."""
        self._work.hear(error)

    def wake(self) -> None:
        """Have the waiting thread look whether it is over. Any thread may call this."""
        self._work.changed.set()

    def call_off(self, why: Abandoned) -> None:
        """Call everything off: the threads send nothing more, and what still arrives does not count."""
        self._work.call_off(why)
        self._end_shift()

    # --- inside ---

    def _stirs(self) -> bool:
        """Return whether the saving thread has something to see to."""
        work = self._work
        ready = self._working and work.over()
        return ready or work.idle() > 0 or work.fatal() is not None or work.due() is not None

    def _advance(self) -> None:
        work = self._work
        if self._working and work.over():
            self._end_shift(learn=True)
        if work.error is not None and not self._working:
            raise work.error
        if (entry := work.fatal()) is not None:
            assert entry.error is not None
            raise entry.error
        if count := work.idle():
            self._staff(count)
        while (entry := work.due()) is not None:
            self._send(entry)

    def _staff(self, count: int) -> None:
        work, uploads = self._work, self._uploads
        workers = uploads.workers(count, work.write_progress.write_plan.size, self.scope)[:count]
        if self._part is not None and len(workers) != uploads.width.count:
            self._part = None  # it tells nothing of the width
        shift, self._working = work.staff(len(workers)), True
        for worker in workers:
            worker.give(
                partial(uploads.put_objects, work, shift, self._fill, self._moved), partial(work.ended, shift)
            )

    def _end_shift(self, *, learn: bool = False) -> None:
        if not self._working:
            return
        self._working = False
        if learn and self._part is not None and self._work.error is None:
            nbytes, began = self._part
            self._uploads.width.learn(nbytes, self.scope.now() - began)
            self._part = None
        self._work.rest()

    def _send(self, entry: QueueEntry) -> None:
        """Make the entry if that was not done, and hand it to a thread."""
        try:
            if entry.put is None:
                entry.put = entry.make()
            worker = self._uploads.request_worker(self.scope)
        except Doubted:
            return
        except Exception as error:
            entry.fail(error)
            if entry.fatal or isinstance(error, StateChanged):
                raise
            return
        limit, left = math.inf, self.scope.left()
        if entry.limit is not None:
            limit = self.scope.now() + min(entry.limit, _LIMIT * (math.inf if left is None else left))
        entry.scope, entry.sent, entry.state = self.scope.part(limit), False, EntryState.SENDING
        worker.give(partial(self._put, entry), self.wake)

    def _put(self, entry: QueueEntry, buffer: B) -> None:
        work, failures = self._work, 0
        put, scope = entry.put, entry.scope
        assert put is not None
        assert scope is not None

        def once(left: float | None) -> None:
            nonlocal failures
            if entry.tiers and not self.write_progress.has(entry.tiers):
                raise Doubted  # since its last try: what it names is looked at first
            failures, entry.sent = work.failures, True
            put(left)

        def hear(why: StoreError) -> None:
            # Nobody waits for an entry that was given up, and the save's own end is no failure of the store.
            if self.scope.left() != 0.0 and entry.sent and entry.scope is scope and not entry.ended:
                work.hear(why)

        error: BaseException | None = None
        try:
            if entry.again:
                entry.seconds += retry(scope, once, work.hear, self._uploads.refusals)
            else:
                entry.seconds += try_once(scope, once, hear)
        except BaseException as why:  # noqa: BLE001 - handed to the thread that waits
            error = why
            if isinstance(why, Abandoned) and not self.scope.abandoned:  # its own limit
                hear(UnavailableError(f"{entry.what}: {why}"))
        work.entry_ended(entry, scope, error, failures)

    def _sending(self) -> list[QueueEntry]:
        return [each for each in self._work.entries if each.state is EntryState.SENDING]

    def _overdue(self) -> None:
        """Give up the entries whose limit has passed. Their request hangs, so what was confirmed before is in doubt."""
        for entry in self._sending():
            if entry.scope is not None and entry.scope.left() == 0.0:
                why = Abandoned(f"the store did not answer for the {entry.what} in time")
                self._work.entry_ended(entry, entry.scope, why, 0)
                if entry.sent:
                    self._work.hear(UnavailableError(str(why)))
