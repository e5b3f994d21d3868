"""`Channel`, a rank's link to the job's store: the threads, connections and deadlines around `protocol`."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...providers.clock import Clock
from ...providers.errors import SpotguardError, UsageError
from ..ipc import typed_json
from . import barrier, events, protocol
from . import store as c10d
from .events import (
    VERSION,
    BackgroundEvent,
    CarriedEvent,
    LogEvent,
    NoticeEvent,
    RevoteEvent,
    UnknownEvent,
    WithdrawnEvent,
)
from .job_state import JobState
from .protocol import Hear, Keys, Saying, Waited
from .store import JobStore, Keeper, StoreSilent, late, within
from .vote import Decision, Vote

log = logging.getLogger("spotguard")

#: Called with an event's number, the event, and the job state after it.
Hearer = Callable[[int, LogEvent, JobState], None]

#: Seconds for the ranks to meet at `join`: they come from a collective.
_MEET = 60.0
#: The number before the first entry of the second store's log. The first store's log never comes so far.
SECOND = 1_000_000_000
#: The most seconds, and the share of the time left, that a call waits for the first store while there is a second one. The answer
#: takes milliseconds. If it is late for another cause, the ranks leave a store that still lives, which costs nothing.
_TRIED, _TRIED_SHARE = 3.0, 0.3
#: The most seconds in which a notice that is called again in the second store comes back.
_CALLED_AGAIN = 2.0
#: Seconds between two looks for it.
_LOOK = 0.01
#: Seconds in which a rank must reach the second store. A firewall that drops packets costs every start as much.
_REACHED = 10.0
#: Seconds for which a rank waits for an entry that another one adds for all.
_ADDED = 2.0
#: Seconds for a connection's thread to end, and for each operation at the close.
_JOIN = 2.0


class SecondStore(Protocol):
    """The maker of the second store, on each rank. Neither method raises."""

    def serve(self) -> str:
        """Serve a store from this process, and return its place for `reach`; "" if that failed. One rank calls it."""
        ...

    def reach(self, place: str) -> JobStore | None:
        """Return a connection to the served store; None if this rank cannot reach it. All ranks call it."""
        ...


class _Found:
    """A connection that a thread makes and another one takes, unless that one has waited long enough: then it is ended."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self._lock = threading.Lock()
        self._keeper: Keeper | None = None
        self._taken = False

    def put(self, keeper: Keeper | None) -> None:
        with self._lock:
            self._keeper = None if self._taken else keeper
            late = keeper if self._taken else None
        self.there.set()
        if late is not None:
            late.end(_JOIN / 10)

    def take(self) -> Keeper | None:
        with self._lock:
            self._taken = True
            return self._keeper


def second_rank(machines: Sequence[str]) -> int:
    """Return the rank that serves the second store: the first one on another machine than rank 0, or else rank 1."""
    return next((rank for rank, machine in enumerate(machines) if machine != machines[0]), 1)


class Channel:
    """One rank's end of the channel. `join` makes it. It receives events from `listen` on, until `close`.

    The job's store ends with the process that serves it, mostly the first rank's. So there is a second store in another rank's
    process, on another machine if there is one. The ranks turn to it when the first does not answer (see `protocol`).
    """

    def __init__(
        self, store: JobStore, rank: int, world: int, incarnation: str, clock: Clock, *, hosts: bool
    ) -> None:
        self.rank = rank
        self.world = world
        #: Name of this life of the job: the same on all its ranks, and in no other life.
        self.incarnation = incarnation
        #: The machine of each rank, in the order of ranks.
        self.machines: tuple[str, ...] = ()
        #: The rank whose process serves the job's own store; None: no rank's does.
        self.host: int | None = None
        #: The job state after all events that this rank has received.
        self.standing = JobState()
        #: The newest epoch whose decision this rank has.
        self.decided = 0
        self._clock = clock
        self._keys = Keys(f"spotguard/{incarnation}", world)
        self._numbers = itertools.count(1)
        #: The job's store, and the second one if there is one.
        self._keepers = [Keeper(store, self._keys, clock)]
        #: The keepers that this process serves.
        self._hosted = self._keepers[:hosts]
        #: The place in `_keepers` of the one whose log counts. This rank has left those before it.
        self._at = 0
        #: The meetings of all ranks at one place in the script. They are held in the job's own store alone.
        self.meetings = barrier.Meetings(store, self._keys, rank, clock)
        #: The newest epoch that this rank has voted in.
        self._offered = 0
        #: Guards what follows, and `_at` and `standing`: each keeper has a thread that reads its log.
        self._lock = threading.Lock()
        #: This rank's own events in the log of the first store, by number, until it has read them there.
        self._unheard: dict[int, LogEvent] = {}
        #: Monotonic seconds until which each notice in the first store's log has time.
        self._ends: dict[str, float] = {}
        #: Number of entries of the first store whose sum this rank has carried into the second one.
        self._carried = -1
        #: The newest epoch of the first store for which this rank has called for other votes.
        self._revoted = 0
        #: Number of entries that this rank had read in the first store when it left.
        self.left_at = 0
        #: Called once if the first store is gone. It must not block.
        self.orphan: Callable[[], None] = lambda: None
        #: This rank is closing, and receives no more events.
        self._leaving = False
        #: This is a forked child: threads and connections are the parent's.
        self._forgotten = False

    @classmethod
    def join(
        cls,
        store: JobStore,
        rank: int,
        world: int,
        machine: str,
        clock: Clock,
        *,
        meet: Callable[[bytes | None], bytes],
        hosts: bool = False,
        second: SecondStore | None = None,
    ) -> Channel:
        """Meet the other ranks. The training threads of all ranks call it at once.

        Args:
            store: the job's store.
            rank: this rank.
            world: number of ranks.
            machine: a token of this rank's machine, the same for all of its ranks.
            clock: the time.
            meet: broadcasts the first rank's bytes. This is the only collective, made here because there is no hurry. It names
                this life of the job: a launcher gives the same store, with all its old keys, to one life after the other.
            hosts: whether the store lives in this process, and ends with it.
            second: makes the second store; None on all ranks if there is none.

        Raises:
            UsageError: other ranks run another version.
            StoreSilent: not all ranks have come.
        """
        incarnation = meet(secrets.token_hex(8).encode() if rank == 0 else None).decode()
        channel = cls(store, rank, world, incarnation, clock, hosts=hosts)
        try:
            channel._greet(machine)
            if second is not None:
                channel._meet_again(second)
        except SpotguardError:
            channel.close(0.0)
            raise
        return channel

    def _greet(self, machine: str) -> None:
        card = typed_json.encode({"version": VERSION, "machine": machine, "hosts": bool(self._hosted)})
        cards = [typed_json.decode(each) for each in self.meetings.gather(card.encode(), _MEET)]
        others = [each for each, card in enumerate(cards) if card.get("version") != VERSION]
        if others:
            raise UsageError(
                f"rank {others[0]} runs another version of spotguard than rank {self.rank}: install the "
                "same version on all machines"
            )
        self.machines = tuple(str(card.get("machine")) for card in cards)
        self.host = next((rank for rank, card in enumerate(cards) if card.get("hosts") is True), None)
        # The connections are made here, so that a notice does not wait for them.
        for line in (*self._keepers[0].connections, self.meetings.connection):
            line.say(c10d.nothing(), within(self._clock, _MEET))

    def _meet_again(self, second: SecondStore) -> None:
        """Connect all ranks to a second store. If one of them cannot, no rank uses it, and the job has its own store alone."""
        host = second_rank(self.machines)
        served = second.serve() if self.rank == host else ""
        place = self.meetings.tell(served.encode() if self.rank == host else None, _MEET, of=host).decode()
        keeper = self._reach(second, place) if place else None
        missing = self.meetings.check(keeper is not None, _MEET)
        if keeper is not None and missing < 0:
            self._keepers.append(keeper)
            self._hosted += [keeper] * (self.rank == host)
            return
        if self.rank == 0:
            why = f"rank {missing} cannot reach {place}" if place else f"rank {host} cannot serve one"
            lost = "if this process is lost, the other ranks save nothing"
            log.info("%s: there is no second store, because %s", lost, why)
        if keeper is not None:
            keeper.end(_JOIN / 10)

    def _reach(self, second: SecondStore, place: str) -> Keeper | None:
        """Connect to the second store, on a thread: c10d waits without end for an endpoint that accepts and never answers."""
        left, found = within(self._clock, _REACHED), _Found()

        def run() -> None:
            keeper = None
            if (store := second.reach(place)) is not None:
                keeper = Keeper(store, replace(self._keys, before=SECOND), self._clock, "-2")
                try:
                    for line in keeper.connections:
                        line.say(c10d.nothing(), left)
                except StoreSilent as why:
                    log.debug("the second store at %s: %s", place, why)
                    keeper.end(_JOIN / 10)
                    keeper = None
            found.put(keeper)

        threading.Thread(target=run, name="spotguard-reach", daemon=True).start()
        self._clock.wait(found.there, left())
        return found.take()

    # --- calls ---

    @property
    def lost(self) -> bool:
        """Whether all stores are gone: this rank receives no events any more."""
        return all(keeper.gone for keeper in self._keepers[self._at :])

    @property
    def orphaned(self) -> bool:
        """Whether the job's own store is gone, and with it the process that served it: mostly the first rank's."""
        return self._keepers[0].gone

    def listen(self, hear: Hearer) -> None:
        """Have a thread "spotguard-mailbox" call `hear` once for each event, in order. `hear` must not block."""
        for at, keeper in enumerate(self._keepers):
            keeper.listen(self.rank, partial(self._hear, at, hear), partial(self._gone, at))

    def call(self, call: LogEvent, left: Callable[[], float | None]) -> int:
        """Send an event to all ranks, including this one, and return its number. Any thread may call it.

        Args:
            call: the event.
            left: returns the seconds that are left; None: no limit.

        Raises:
            StoreSilent: the store is gone, or has not answered in time. The ranks may still receive the event.
        """
        if isinstance(call, BackgroundEvent):
            call = replace(call, heard=self.standing.epoch)
        why = StoreSilent("the job's store is gone")
        for keeper, seconds in self._turns(left):
            self._carry_before(keeper)
            entry = events.encode(call, self.rank, next(self._numbers))
            try:
                number = keeper.caller.say(protocol.call(keeper.keys, entry, keeper.heard), seconds)
            except StoreSilent as error:
                why = error
                continue
            if self._is_read(keeper, number, call, seconds):
                return number
            # The others have left that store, or it has gone or fallen silent since: nobody may ever read the entry.
        raise why

    def _is_read(self, keeper: Keeper, number: int, call: LogEvent, left: Callable[[], float | None]) -> bool:
        """Return whether all ranks will read an entry: this rank reads it, or carries it into the second store.

        A store may take an entry and go, or fall silent, before anyone has read it.
        """
        last = self._keepers[-1]
        with self._lock:
            if keeper is last:
                return True
            if self._at or keeper.gone:
                return False
            if self.standing.epoch >= number:
                return True
            self._unheard[number] = call
        if last.gone:
            return True
        never = threading.Event()
        for pause in c10d.pauses():
            seconds = left()
            if number not in self._unheard or self._leaving:
                return True
            if seconds is not None and seconds <= 0:
                break
            self._clock.wait(never, pause)
        with self._lock:
            return self._unheard.pop(number, None) is None

    def _turns(self, left: Callable[[], float | None]) -> Iterator[tuple[Keeper, Callable[[], float | None]]]:
        """Yield the stores to call in, one after the other, with the time that each has."""
        first, *behind = self._keepers[self._at :]
        if not behind or behind[0].gone:
            yield first, left
            return
        seconds = left()
        if not first.gone:
            share = _TRIED if seconds is None else min(_TRIED, _TRIED_SHARE * seconds)
            yield first, within(self._clock, share)
        half = None if first.gone or seconds is None else within(self._clock, seconds / 2)
        yield behind[0], half or left
        if not first.gone:
            yield first, left

    def revote(self, epoch: int, left: Callable[[], float]) -> None:
        """Have all ranks vote again, in the second store, on a save that was called for in the first one.

        Raises:
            StoreSilent: the second store is gone, too, or has not answered in time.
        """
        *_, keeper = self._keepers
        self._carry_before(keeper)
        keeper.caller.say(
            self._once(RevoteEvent(epoch), f"revote/{epoch}"), left, late(self._clock, left() / 2)
        )

    def _once(self, call: LogEvent, name: str) -> Saying[None]:
        """Return the operations that add an entry to the second store's log, unless another rank adds it under this name."""
        *_, keeper = self._keepers
        entry = events.encode(call, self.rank, next(self._numbers))
        return protocol.call_once(keeper.keys, name, entry, keeper.heard)

    def _carry_before(self, keeper: Keeper) -> None:
        """Carry the job state into the second store before this rank writes there."""
        if keeper is self._keepers[0]:
            return
        with self._lock:
            if not self._at:
                self._carry()

    def _carry(self) -> None:
        """Have the second store's log contain what the first one's does, as this rank knows it; under the lock.

        That is the job state, and this rank's own events that it has not read there. The connection's thread writes them, in order
        and before all calls of this rank that come later.
        """
        *before, keeper = self._keepers
        if not before or keeper.gone:
            return
        if self.standing.epoch > self._carried:
            self._carried, now = self.standing.epoch, self._clock.monotonic()
            carried = self.standing.carry(lambda notice: max(0.0, self._ends[notice.id] - now))
            saying = self._once(carried, f"carried/{carried.heard}")
            keeper.caller.begin(saying, late(self._clock, _ADDED))
        for number, call in self._unheard.items():
            if isinstance(call, (NoticeEvent, WithdrawnEvent)):
                call = replace(call, was=number)
            entry = events.encode(call, self.rank, next(self._numbers))
            keeper.caller.begin(protocol.call(keeper.keys, entry, keeper.heard), lambda: None)
        self._unheard.clear()

    def agree(
        self, epoch: int, offer: Vote, left: Callable[[], float | None], over: Callable[[], bool]
    ) -> Decision:
        """Vote, and return the decision for all ranks. The saver thread calls it, once for each epoch.

        Args:
            epoch: number of the event that asks for the save.
            offer: this rank's vote.
            left: returns the seconds that are left; None: no limit. Shortly before the end this rank decides without the ranks
                that have not voted.
            over: returns whether the save does not count any more. The channel itself sees an event that supersedes this one.

        Returns:
            The decision. Its step is None if nothing is saved. That is the decision for all ranks, or holds for this rank alone:
            the store is silent, the epoch does not count any more, or this rank has voted in it before.
        """
        if epoch <= self._offered:  # a second vote would count twice, and the first may be decided on already
            return Decision(epoch, None, "this rank has voted on this save before")
        self._offered = epoch
        if self._superseded(epoch):
            return Decision(
                epoch, None, "a later call has replaced this save"
            )  # no vote, so that no rank relies on this one
        total = left()
        kept = 0.0 if total is None else min(c10d.SETTLE_MOST, total * c10d.SETTLE)

        def waiting() -> Waited | None:
            if self._superseded(epoch) or over():
                return Waited.OVER
            seconds = left()
            return Waited.LATE if seconds is not None and seconds <= kept else None

        keeper = self._keepers[self.side(epoch)]
        try:
            if keeper is not self._keepers[self._at]:
                raise StoreSilent("the ranks have left the store in which this save was called for")
            decision = keeper.agreement.say(
                protocol.agree(keeper.keys, epoch, offer),
                # A silent store keeps no rank that the others have called to the second one.
                lambda: left() if keeper is self._keepers[self._at] else 0.0,
                waiting,
            )
        except StoreSilent as why:
            if self._is_replaced(epoch, total, over):
                return Decision(epoch, None, "a later call has replaced this save")
            return Decision(epoch, None, str(why))
        if decision is None:
            return Decision(epoch, None, "this save is no longer wanted, or a later call has replaced it")
        self.decided = epoch
        return decision

    def _is_replaced(self, epoch: int, total: float | None, over: Callable[[], bool]) -> bool:
        """Return whether a call in the second store has replaced a save whose store did not answer."""
        if self.side(epoch) or len(self._keepers) == 1 or self._keepers[-1].gone:
            return self._superseded(epoch)
        self._carry_before(self._keepers[-1])
        wanted = self.standing.wanted
        if not self._is_behind(self.standing) and (wanted is None or wanted.cause != "notice"):
            return self._superseded(epoch)
        seconds = within(self._clock, _CALLED_AGAIN if total is None else min(_CALLED_AGAIN, total))
        never = threading.Event()
        while not self._superseded(epoch) and not over() and seconds():
            self._clock.wait(never, _LOOK)
        return self._superseded(epoch)

    def counts(self, epoch: int) -> bool:
        """Return whether a save is the one that counts, as far as this rank has read. A newer call may be about to come.

        A state that another rank has carried into the second store, with less in it than this rank has read in the first, ends no
        save of the first one: this rank's own follows.
        """
        standing = self.standing
        if self._is_behind(standing) and not self.side(epoch):
            return True
        return standing.epoch < epoch or standing.counts(epoch)

    def _is_behind(self, standing: JobState) -> bool:
        return standing.carried is not None and standing.carried < self.left_at

    def side(self, epoch: int) -> int:
        """Return the place of the store in whose log this number is: 0 for the job's own, 1 for the second one."""
        return int(epoch > SECOND)

    # --- the end ---

    def close(self, patience: float = 5.0) -> None:
        """Stop listening and end the connections.

        If the store goes while a thread is in its `wait`, the process aborts. So every rank leaves its wait, and the rank that
        hosts the store goes last.

        Args:
            patience: seconds for which the hosting rank waits for the others. No rank waits for a store that is gone.
        """
        if self._forgotten or self._leaving:
            return
        self._leaving = True
        for keeper in self._keepers:
            try:
                keeper.stop(self.rank, within(self._clock, _JOIN), _JOIN)
                keeper.caller.say(barrier.leave(keeper.keys), within(self._clock, _JOIN))
            except StoreSilent as why:
                log.debug("this rank could not announce its end: %s", why)
        for keeper in self._hosted:  # after this rank has left every store: another host may wait for it
            try:
                wait, seconds = barrier.wait_left(keeper.keys), within(self._clock, patience + _JOIN)
                keeper.caller.say(wait, seconds, late(self._clock, patience))
            except StoreSilent as why:
                log.debug("this rank could not wait for the others' end: %s", why)
        self.meetings.connection.close(_JOIN / 10)
        for keeper in self._keepers:
            keeper.end(_JOIN / 10)

    def forget(self) -> None:
        """Mark this process as a forked child, which must not use the parent's threads and connections."""
        self._forgotten = True

    # --- inside ---

    def _hear(self, at: int, hear: Hearer, heard: Hear) -> None:
        with self._lock:
            if at < self._at:
                return  # the ranks have left this store
            call = events.decode(heard.raw)
            before = self.standing
            if at > self._at:
                self._leave(at, call)
                before = JobState(self._keepers[at].keys.before)
            if before.includes(call):
                call = UnknownEvent("it was carried from the first store")
            standing = before.after(call)
            self._keep(call)
            try:
                hear(heard.epoch, call, standing)
            except Exception:  # a bug of spotguard must not end the only thread that receives events
                log.exception("internal error; please report it [SG704]")
            # Set after `hear`: the saver leaves an epoch once it sees it superseded, and must know by then which save replaces it.
            self.standing = standing
            self._unheard.pop(heard.epoch, None)
            if standing.wanted is not None and standing.undecided(max(self.decided, self._revoted)):
                self._revoted = standing.wanted.epoch
                saying = self._once(RevoteEvent(self._revoted), f"revote/{self._revoted}")
                self._keepers[at].caller.begin(saying, late(self._clock, _ADDED))

    def _leave(self, at: int, call: LogEvent) -> None:
        """Leave the first store for good, because an entry has come in the second one; under the lock."""
        if isinstance(call, CarriedEvent) and call.heard >= self.standing.epoch:
            self._carried = max(self._carried, call.heard)  # nothing is to be added
        self._carry()
        self._at, self.left_at = at, self.standing.epoch
        log.info("the ranks agree through the second store now")

    def _keep(self, call: LogEvent) -> None:
        """Note how long a notice has time: it may have to be carried into the second store."""
        known = {each.id for each in self.standing.notices}
        if isinstance(call, NoticeEvent) and not self._at and call.id not in known:
            self._ends[call.id] = self._clock.monotonic() + call.seconds_left

    def _gone(self, at: int, why: Exception) -> None:
        if not isinstance(why, StoreSilent):
            log.error(
                "this rank receives no more notices of other machines; please report it [SG504]",
                exc_info=why,
            )
        elif self.lost:
            log.warning("this rank receives no more notices of other machines: %s [SG504]", why)
        elif at == self._at:
            log.info("the job's store is gone, and the ranks agree through a second one: %s", why)
        else:
            log.debug("the store that this rank does not need is gone: %s", why)
        if at == 0 and not self.lost:
            self._carry_before(self._keepers[-1])
            self.orphan()

    def _superseded(self, epoch: int) -> bool:
        return not self.counts(epoch)
