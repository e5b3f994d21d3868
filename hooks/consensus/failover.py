"""The failover of a rank from the job's own store to the second one: which log counts, and what is carried from one into the other.

`protocol` has the rules, and `job_state` the sum of both logs.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...providers.clock import Clock
from . import events, protocol
from .events import CarriedEvent, LogEvent, NoticeEvent, RevoteEvent, UnknownEvent, WithdrawnEvent
from .job_state import JobState
from .protocol import LogEntry, Saying
from .stores.connection import late, pauses, within
from .stores.store_client import StoreClient

log = logging.getLogger("spotguard")

#: Called with an event's number, the event, and the job state after it.
EventHandler = Callable[[int, LogEvent, JobState], None]

#: The number before the first entry of the second store's log. The first store's log never comes so far.
SECOND_STORE = 1_000_000_000
#: The most seconds, and the share of the time left, that a call waits for the first store while there is a second one. The answer
#: takes milliseconds. If it is late for another cause, the ranks leave a store that still lives, which costs nothing.
_TRIED, _TRIED_SHARE = 3.0, 0.3
#: The most seconds in which the call for other votes comes back from the second store.
_REVOTED = 2.0
#: Seconds between two looks for it.
_LOOK = 0.01
#: Seconds for which a rank waits for an entry that another one adds for all.
_ADDED = 2.0


def side(epoch: int) -> int:
    """Return the place of the store in whose log this number is: 0 for the job's own, 1 for the second one."""
    return int(epoch > SECOND_STORE)


class Failover:
    """One rank's place in the logs of the job's stores, and what it takes from the first log into the second one.

    Args:
        client: the job's own store. `clients` gets the second one if there is one.
        rank: this rank.
        clock: the time.
    """

    def __init__(self, client: StoreClient, rank: int, clock: Clock) -> None:
        #: The job's own store, and the second one if there is one.
        self.clients = [client]
        #: The place in `clients` of the one whose log counts. This rank has left those before it.
        self.at = 0
        #: Number of entries that this rank had read in the first store when it left.
        self.left_at = 0
        #: The job state after all events that this rank has received.
        self.standing = JobState()
        #: The newest epoch whose decision this rank has.
        self.decided = 0
        #: This rank is closing, and receives no more events.
        self.closing = False
        self._rank = rank
        self._clock = clock
        self._numbers = itertools.count(1)
        #: Guards what follows, and `at` and `standing`: each client has a thread that reads its log.
        self._lock = threading.Lock()
        #: Entries that are read and not yet taken in, each with the place of its store; and whether a thread takes them in.
        self._entries: deque[tuple[int, LogEntry]] = deque()
        self._taking_in = False
        #: This rank's own events in the log of the first store, by number, until it has read them there.
        self._unread: dict[int, LogEvent] = {}
        #: Number of the newest entry of the first store that this rank has taken in, or is taking in.
        self._begun = 0
        #: Monotonic seconds until which each notice in the first store's log has time.
        self._ends: dict[str, float] = {}
        #: Number of entries of the first store whose sum this rank has carried into the second one.
        self._carried = -1
        #: The newest epoch of the first store for which this rank has called for other votes.
        self._revoted = 0

    @property
    def current(self) -> StoreClient:
        """The client of the store whose log counts."""
        return self.clients[self.at]

    @property
    def last(self) -> StoreClient:
        """The client of the store behind which there is no other one."""
        return self.clients[-1]

    # --- writing: which store to call, and whether its entry will be read ---

    def turns(
        self, left: Callable[[], float | None], *, ends: bool = False
    ) -> Iterator[tuple[StoreClient, Callable[[], float | None]]]:
        """Yield the stores to call in, one after the other, with the time that each has.

        The first store has a short time, the second one half of what is left, and then the first one the rest. A store that is
        gone is left out.

        Args:
            left: returns the seconds that are left; None: no limit.
            ends: the store whose log counts may end right after the call, so the one behind it comes first.
        """
        first, *behind = self.clients[self.at :]
        if not behind or behind[0].gone:
            yield first, left
            return
        seconds = left()
        if not (first.gone or ends):
            share = _TRIED if seconds is None else min(_TRIED, _TRIED_SHARE * seconds)
            yield first, within(self._clock, share)
        half = None if first.gone or seconds is None else within(self._clock, seconds / 2)
        yield behind[0], half or left
        if not first.gone:
            yield first, left

    def entry(self, call: LogEvent) -> str:
        """Return the entry of an event, as only this rank writes it, and only once."""
        return events.encode(call, self._rank, next(self._numbers))

    def add_once(self, call: LogEvent, name: str) -> Saying[None]:
        """Return the operations that add an entry to the second store's log, unless another rank adds it under this name."""
        return protocol.call_once(self.last.keys, name, self.entry(call), self.last.heard)

    def wait_until_read(
        self, client: StoreClient, number: int, call: LogEvent, left: Callable[[], float | None]
    ) -> bool:
        """Wait until it is known, and return, whether all ranks will read an entry: this rank reads it, or carries it into the second store.

        A store may take an entry and go, or fall silent, before anyone has read it.
        """
        last = self.last
        with self._lock:
            if client is last:
                return True
            if self.at or client.gone:
                return False
            if self._begun >= number:
                return True
            self._unread[number] = call
        if last.gone:
            return True
        never = threading.Event()
        for pause in pauses():
            seconds = left()
            if number not in self._unread or self.closing:
                return True
            if seconds is not None and seconds <= 0:
                break
            self._clock.wait(never, pause)
        with self._lock:
            return self._unread.pop(number, None) is None

    # --- carrying, and leaving ---

    def carry_before(self, client: StoreClient) -> None:
        """Carry the job state into the second store before this rank writes there."""
        if client is self.clients[0]:
            return
        with self._lock:
            if not self.at:
                self._carry()

    def _carry(self) -> None:
        """Have the second store's log contain what the first one's does, as this rank knows it; under the lock.

        That is the job state, and this rank's own events that it has not read there. The connection's thread writes them, in order
        and before all calls of this rank that come later.
        """
        *before, client = self.clients
        if not before or client.gone:
            return
        if self.standing.epoch > self._carried:
            self._carried, now = self.standing.epoch, self._clock.monotonic()
            carried = self.standing.carry(lambda notice: max(0.0, self._ends[notice.id] - now))
            saying = self.add_once(carried, f"carried/{carried.heard}")
            client.caller.begin(saying, late(self._clock, _ADDED))
        for number, call in self._unread.items():
            if isinstance(call, (NoticeEvent, WithdrawnEvent)):
                call = replace(call, was=number)
            entry = self.entry(call)
            client.caller.begin(protocol.call(client.keys, entry, client.heard), lambda: None)
        self._unread.clear()

    def receive(self, at: int, handle: EventHandler, entry: LogEntry) -> None:
        """Take in the next entry of a log, on the thread that reads it.

        Events are handled one after the other, and with no lock held: whatever handles one may wait for a thread that calls.

        Args:
            at: the place of the log's store in `clients`.
            handle: gets the event.
            entry: the entry.
        """
        with self._lock:
            self._entries.append((at, entry))
            if self._taking_in:
                return  # the other log's thread is at it, and takes in this entry, too
            self._taking_in = True
        failure: BaseException | None = None
        while (following := self._next()) is not None:
            try:
                self._take_in(*following, handle)
            except BaseException as error:  # noqa: BLE001 the other log's entries are taken in first, for its thread does not
                failure = failure or error
        if failure is not None:
            raise failure

    def _next(self) -> tuple[int, LogEntry] | None:
        with self._lock:
            self._taking_in = bool(self._entries)
            return self._entries.popleft() if self._entries else None

    def _take_in(self, at: int, entry: LogEntry, handle: EventHandler) -> None:
        with self._lock:
            if at < self.at:
                return  # the ranks have left this store
            call = events.decode(entry.raw)
            before = self.standing
            if at > self.at:
                self._leave(at, call)
                before = JobState(self.clients[at].keys.before)
            if not at:
                # Before `handle`, which may wait for a thread that carries: this entry is carried by the state that follows from it.
                self._begun = entry.epoch
                self._unread.pop(entry.epoch, None)
            if before.includes(call):
                call = UnknownEvent("it was carried from the first store")
            standing = before.after(call)
            self._keep(call)
        try:
            handle(entry.epoch, call, standing)
        except Exception:  # a bug of spotguard must not end the only thread that receives events
            log.exception("internal error; please report it [SG704]")
        with self._lock:
            # Set after `handle`: the saver leaves an epoch once it sees it superseded, and must know by then which save replaces it.
            self.standing = standing
            if standing.wanted is not None and standing.undecided(max(self.decided, self._revoted)):
                self._revoted = standing.wanted.epoch
                saying = self.add_once(RevoteEvent(self._revoted), f"revote/{self._revoted}")
                self.clients[at].caller.begin(saying, late(self._clock, _ADDED))

    def _leave(self, at: int, call: LogEvent) -> None:
        """Leave the first store for good, because an entry has come in the second one; under the lock."""
        if isinstance(call, CarriedEvent) and call.heard >= self.standing.epoch:
            self._carried = max(self._carried, call.heard)  # nothing is to be added
        self._carry()
        self.at, self.left_at = at, self.standing.epoch
        log.info("the ranks agree through the second store now")

    def _keep(self, call: LogEvent) -> None:
        """Note how long a notice has time: it may have to be carried into the second store."""
        known = {each.id for each in self.standing.notices}
        if isinstance(call, NoticeEvent) and not self.at and call.id not in known:
            self._ends[call.id] = self._clock.monotonic() + call.seconds_left

    # --- the save that counts ---

    def wait_until_replaced(self, epoch: int, total: float | None, over: Callable[[], bool]) -> bool:
        """Wait for a call in the second store, and return whether it has replaced a save whose store did not answer."""
        if side(epoch) or len(self.clients) == 1 or self.last.gone:
            return not self.counts(epoch)
        self.carry_before(self.last)
        wanted = self.standing.wanted
        if not self._is_behind(self.standing) and (wanted is None or wanted.cause != "notice"):
            return not self.counts(epoch)
        seconds = within(self._clock, _REVOTED if total is None else min(_REVOTED, total))
        never = threading.Event()
        while self.counts(epoch) and not over() and seconds():
            self._clock.wait(never, _LOOK)
        return not self.counts(epoch)

    def counts(self, epoch: int) -> bool:
        """Return whether a save is the one that counts, as far as this rank has read. A newer call may be about to come.

        A state that another rank has carried into the second store, with less in it than this rank has read in the first, ends no
        save of the first one: this rank's own follows.
        """
        standing = self.standing
        if self._is_behind(standing) and not side(epoch):
            return True
        return standing.epoch < epoch or standing.counts(epoch)

    def _is_behind(self, standing: JobState) -> bool:
        return standing.carried is not None and standing.carried < self.left_at
