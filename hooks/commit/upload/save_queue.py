"""The queue of a save: everything that it puts, in order, from its first object to its marker.

The saving thread uses it. The threads of the uploader put the objects (`transfer`) and make the requests.

Objects never wait for an entry. An entry (a claim, a manifest, a marker or an index) goes when its turn comes: behind the objects that
it names, and the entries before it. If any request of the save fails for a moment, nothing goes behind what is in doubt since,
until that was looked at or put again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Generic

from ....providers.errors import StoreError, UnavailableError
from ...checkpoint.format.keys import CheckpointName
from ...checkpoint.tier import Tier
from ..cancel_scope import Abandoned, CancelScope
from ..plan.write_plan import ALL, WrittenState
from .retry import retry
from .transfer import StateChanged, Transfer
from .workers import B, as_failure

#: Share of the time to the deadline that an entry with a limit may take, so that time is left to look at what it puts in doubt.
_LIMIT = 0.5


#: A request of the store, called with the seconds until the deadline. Each call puts the same bytes under the same key.
Put = Callable[[float | None], object]


class EntryState(Enum):
    WAITING = "waiting"
    SENDING = "sending"
    #: The store has confirmed it, and no failure was heard since.
    STORED = "stored"
    #: The store may have it, and has failed since: it is put again.
    DOUBTED = "doubted"
    #: It will not be put again; `error` says why.
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One such request, and how far it is."""

    #: What it puts, for messages.
    what: str
    #: Called once, on the saving thread, when the turn of the entry comes. It returns the request.
    make: Callable[[], Put]
    #: The objects that it names, by their tiers: they are in the store, and not in doubt, before it is put.
    tiers: Sequence[Tier] = ()
    #: The entries that are in the store before it is put.
    after: Sequence[QueueEntry] = ()
    #: Seconds for it; None: until the deadline of the save.
    limit: float | None = None
    #: The errors that cost the save nothing. Any other error of the entry ends the save.
    tolerated: tuple[type[Exception], ...] = ()
    #: Whether it is tried again while it fails transiently.
    again: bool = True
    state: EntryState = EntryState.WAITING
    error: BaseException | None = None
    #: When the store confirmed it, and the seconds of the answers.
    at: float = 0.0
    seconds: float = 0.0
    put: Put | None = field(default=None, repr=False)
    #: The part of the save's scope in which it is tried, and that in which its request last began. None: the store cannot have it.
    scope: CancelScope | None = field(default=None, repr=False)
    begun: CancelScope | None = field(default=None, repr=False)

    @property
    def stored(self) -> bool:
        return self.state is EntryState.STORED

    @property
    def ended(self) -> bool:
        """Whether it is in the store or has failed."""
        return self.state in (EntryState.STORED, EntryState.FAILED)

    @property
    def fatal(self) -> bool:
        """Whether its failure ends the save."""
        return self.error is not None and not isinstance(self.error, self.tolerated)

    @property
    def due(self) -> bool:
        """Whether it is put when its turn comes."""
        return self.state in (EntryState.WAITING, EntryState.DOUBTED)

    def fail(self, error: BaseException) -> None:
        self.state, self.error = EntryState.FAILED, as_failure(error)

    def hold_up(self) -> None:
        """Have it put when its turn comes again."""
        self.state, self.error = EntryState.WAITING if self.begun is None else EntryState.DOUBTED, None


class Doubted(Exception):
    """The store may have lost objects, which are looked at first."""


class SaveQueue(Generic[B]):
    """All that one save puts: the objects of its transfer, in any number of parts, and entries that follow one another."""

    def __init__(self, transfer: Transfer[B]) -> None:
        transfer.heard = self.hear
        self._work = transfer
        self._uploads = transfer.uploads
        self.store = transfer.uploads.store
        self.scope = transfer.scope
        self.write_progress = transfer.write_progress
        self._entries: list[QueueEntry] = []
        #: Called while the saving thread waits. It may queue more, and returns the monotonic seconds at which to call it again.
        self.plan: Callable[[], float] = lambda: math.inf

    def objects(self, tiers: Sequence[Tier] = ALL) -> None:
        """Begin to put the missing objects of these tiers; `whole` tells when all of them are in the store."""
        self._work.begin(tiers)
        self._advance()

    def add(self, entry: QueueEntry) -> QueueEntry:
        """Queue an entry behind the others."""
        self._entries.append(entry)
        return entry

    def whole(self) -> bool:
        """Return whether all objects that were begun are in the store, and none is in doubt."""
        return self._work.whole()

    def settled(self) -> bool:
        """Return whether nothing that the store may have is in doubt or on its way again."""
        again = (EntryState.DOUBTED, EntryState.SENDING)
        return self._work.sound() and not any(
            each.state in again and not each.tolerated for each in self._entries
        )

    def written(self, name: CheckpointName, tiers: Sequence[Tier] = ALL) -> WrittenState:
        """Return the content of the manifest of `name`.

        Raises:
            Doubted: the store has failed a moment ago.
        """
        with self._work.lock:
            if not self.write_progress.has(tiers):
                raise Doubted
            return self.write_progress.written(name, tiers)

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
                planned = self._advance()
                if self._is(over):
                    return True
                limits = [each.scope.deadline for each in self._sending() if each.scope]
                try:
                    if part.deadline != (earliest := min(until, planned, self.scope.deadline, *limits)):
                        part = self.scope.part(earliest)
                    part.wait(partial(self._stirs, over, planned), self._work.changed)
                except Abandoned:
                    if self.scope.abandoned or self.scope.left() == 0.0:
                        raise
                    self._overdue()
                    if self.scope.now() >= until:
                        return self._is(over)
        except Abandoned as why:
            self.call_off(why)
            error = self._work.error
            assert error is not None
            if isinstance(error, Abandoned) and self.scope.left() == 0.0 and not self._work.sound():
                raise Abandoned(f"{error}; {self._work.amount()}") from None
            raise error from None
        except BaseException as why:
            self._work.fail(why)  # no thread goes on with a save that has failed
            self._work.rest()
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
        """Note a failure of the store that a request of this save has met: unless it is a refusal, all is in doubt since."""
        work = self._work
        with work.lock:
            if work.doubt(error):
                for entry in self._entries:
                    if entry.state is EntryState.STORED:
                        entry.state = EntryState.DOUBTED
        self.wake()

    def wake(self) -> None:
        """Have the waiting thread look whether it is over. Any thread may call this."""
        self._work.changed.set()

    def call_off(self, why: Abandoned) -> None:
        """Call everything off: the threads send nothing more, and what still arrives does not count."""
        self._work.call_off(why)
        self._work.rest()

    # --- inside ---

    def _stirs(self, over: Callable[[], bool], planned: float) -> bool:
        """Return whether the saving thread has something to see to."""
        # The first two may end entries: what is asked behind them sees it.
        stirs = self.plan() != planned or self._due() is not None
        return stirs or over() or self._work.stirs() or self._fatal() is not None

    def _advance(self) -> float:
        """Have everything go whose turn has come. Return when the plan is to be called again."""
        planned = self.plan()
        self._raise_fatal()
        self._work.advance()
        while (entry := self._due()) is not None:
            self._send(entry)
        return planned

    def _is(self, over: Callable[[], bool]) -> bool:
        """Return `over()`, and raise what has failed by then: an entry behind a failed one has ended too."""
        ended = over()
        self._raise_fatal()
        return ended

    def _raise_fatal(self) -> None:
        if (entry := self._fatal()) is not None:
            assert entry.error is not None
            raise entry.error

    def _fatal(self) -> QueueEntry | None:
        """Return an entry whose failure ends the save; None if there is none."""
        return next((each for each in self._entries if each.fatal), None)

    def _due(self) -> QueueEntry | None:
        """Return the next entry whose turn has come. One at a time is on its way, but those that may fail hold up nothing."""
        with self._work.lock:
            if any(not each.tolerated for each in self._sending()):
                return None
            for entry in self._entries:
                if not entry.due:
                    continue
                if (error := next((each.error for each in entry.after if each.error), None)) is not None:
                    entry.fail(error)
                elif all(each.stored for each in entry.after) and self._work.has(entry.tiers):
                    return entry
        return None

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
        entry.scope, entry.state = self.scope.part(limit), EntryState.SENDING
        worker.give(partial(self._put, entry), self.wake)

    def _put(self, entry: QueueEntry, buffer: B) -> None:
        progress, failures = self.write_progress, 0
        put, scope = entry.put, entry.scope
        assert put is not None
        assert scope is not None

        def begin(left: float | None) -> None:
            nonlocal failures
            if entry.tiers and not progress.has(entry.tiers):
                raise Doubted  # since its last try: what it names is looked at first
            failures, entry.begun = progress.failures, scope
            put(left)

        def hear(why: StoreError) -> None:
            # Nobody waits for an entry that was given up, and the save's own end is no failure of the store.
            if self.scope.left() != 0.0 and entry.begun is entry.scope is scope and not entry.ended:
                self.hear(why)

        error: BaseException | None = None
        try:
            if entry.again:
                entry.seconds += retry(scope, begin, self.hear, self._uploads.refusals)
            else:
                entry.seconds += retry(scope, begin, hear, again=False)
        except BaseException as why:  # noqa: BLE001 - handed to the thread that waits
            error = why
            if isinstance(why, Abandoned) and not self.scope.abandoned:  # its own limit
                hear(UnavailableError(f"{entry.what}: {why}"))
        self._ended(entry, scope, error, failures)

    def _ended(
        self, entry: QueueEntry, scope: CancelScope, error: BaseException | None, failures: int
    ) -> None:
        """Note the end of an entry's request.

        Args:
            scope: the scope of the request. Its answer does not count if the entry has been given up since.
            failures: the number of `failures` when its last try began.
        """
        with self._work.lock:
            if entry.state is not EntryState.SENDING or entry.scope is not scope:
                return
            if isinstance(error, Doubted):
                entry.hold_up()
            elif error is not None:
                entry.fail(error)
            else:
                entry.at = self.scope.now()
                sound = failures == self.write_progress.failures
                entry.state = EntryState.STORED if sound else EntryState.DOUBTED
        self.wake()

    def _sending(self) -> list[QueueEntry]:
        return [each for each in self._entries if each.state is EntryState.SENDING]

    def _overdue(self) -> None:
        """Give up the entries whose limit has passed. Their request hangs, so what was confirmed before is in doubt."""
        for entry in self._sending():
            if entry.scope is not None and entry.scope.left() == 0.0:
                why = Abandoned(f"the store did not answer for the {entry.what} in time")
                self._ended(entry, entry.scope, why, 0)
                if entry.begun is entry.scope:
                    self.hear(UnavailableError(str(why)))
