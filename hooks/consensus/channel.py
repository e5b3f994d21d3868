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
from .events import VERSION, BackgroundEvent, BoundaryEvent, LogEvent, NoticeEvent
from .job_state import JobState
from .protocol import Hear, Keys, Waited
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
        #: Guards `_at`, `standing` and `_unheard`: each keeper has a thread that reads its log.
        self._lock = threading.Lock()
        #: This rank's own events in the log of the first store, by number, until it has read them there.
        self._unheard: dict[int, LogEvent] = {}
        #: Called when the first store is gone, silent or left, with the job state by its log and this rank's own events that are
        #: lost with it. It calls again what counts, and returns whether a save comes of that. It must not block.
        self.recall: Callable[[JobState, list[LogEvent]], bool] = lambda standing, unheard: False
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
        place = self.meetings.gather(served.encode(), _MEET)[host].decode()
        keeper = self._reach(second, place) if place else None
        reached = self.meetings.gather(b"1" if keeper else b"", _MEET)
        if keeper is not None and all(reached):
            self._keepers.append(keeper)
            self._hosted += [keeper] * (self.rank == host)
            return
        if self.rank == 0:
            missing = reached.index(b"")
            why = f"rank {missing} cannot reach {place}" if place else f"rank {host} cannot serve one"
            lost = "if this process is lost, the other ranks save nothing"
            log.info("%s: there is no second store, because %s", lost, why)
        if keeper is not None:
            keeper.end(_JOIN / 10)

    def _reach(self, second: SecondStore, place: str) -> Keeper | None:
        if (store := second.reach(place)) is None:
            return None
        keeper = Keeper(store, replace(self._keys, before=SECOND), self._clock, "-2")
        try:
            for line in keeper.connections:
                line.say(c10d.nothing(), within(self._clock, _MEET / 2))
        except StoreSilent as why:
            log.debug("the second store at %s: %s", place, why)
            keeper.end(_JOIN / 10)
            return None
        return keeper

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
        for keeper, seconds in self._turns(call, left):
            entry = events.encode(call, self.rank, next(self._numbers))
            try:
                number = keeper.caller.say(protocol.call(keeper.keys, entry, keeper.heard), seconds)
            except StoreSilent as error:
                why = error
                continue
            with self._lock:
                if self._keepers.index(keeper) >= self._at:
                    if keeper is not self._keepers[-1] and self.standing.epoch < number:
                        self._unheard[number] = call
                    return number
            # Other ranks have left that store meanwhile, and this one with them: nobody reads the entry.
        raise why

    def _turns(
        self, call: LogEvent, left: Callable[[], float | None]
    ) -> Iterator[tuple[Keeper, Callable[[], float | None]]]:
        """Yield the stores to call in, one after the other, with the time that each has."""
        first, *behind = self._keepers[self._at :]
        if isinstance(call, BoundaryEvent):  # means nothing in another log than that of its save
            if first is self._keeper_of(call.epoch):
                yield first, left
            return
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

    def call_again(self, notice: NoticeEvent, left: Callable[[], float]) -> None:
        """Send a notice that this rank has read in the first store's log to all ranks, by the second store.

        Raises:
            StoreSilent: the second store is gone, too, or has not answered in time.
        """
        *_, keeper = self._keepers
        entry = events.encode(notice, self.rank, next(self._numbers))
        saying = protocol.call_again(keeper.keys, notice.id, entry, keeper.heard)
        keeper.caller.say(saying, left, late(self._clock, left() / 2))

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

        keeper = self._keeper_of(epoch)
        try:
            decision = keeper.agreement.say(
                protocol.agree(keeper.keys, epoch, offer),
                # A silent store keeps no rank that the others have called to the second one.
                lambda: 0.0 if self._superseded(epoch) and keeper is not self._keepers[self._at] else left(),
                waiting,
            )
        except StoreSilent as why:
            if self._is_called_again(epoch, keeper, total, over):
                return Decision(epoch, None, "a later call has replaced this save")
            return Decision(epoch, None, str(why))
        if decision is None:
            return Decision(epoch, None, "this save is no longer wanted, or a later call has replaced it")
        self.decided = epoch
        return decision

    def _is_called_again(
        self, epoch: int, keeper: Keeper, total: float | None, over: Callable[[], bool]
    ) -> bool:
        """Return whether a call in the second store has replaced a save whose store did not answer."""
        if keeper is self._keepers[-1] or self._keepers[-1].gone or not self._recall():
            return self._superseded(epoch)
        seconds = within(self._clock, _CALLED_AGAIN if total is None else min(_CALLED_AGAIN, total))
        never = threading.Event()
        while not self._superseded(epoch) and not over() and seconds():
            self._clock.wait(never, _LOOK)
        return self._superseded(epoch)

    def side(self, epoch: int) -> int:
        """Return the place of the store in whose log this number is: 0 for the job's own, 1 for the second one."""
        return int(epoch > SECOND)

    def _keeper_of(self, epoch: int) -> Keeper:
        return self._keepers[self.side(epoch)]

    def _recall(self) -> bool:
        with self._lock:
            standing, unheard = self.standing, [*self._unheard.values()]
            self._unheard.clear()
        return self.recall(standing, unheard)

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
            left = self.standing if at > self._at else None
            unheard = [*self._unheard.values()] if left is not None else []
            if left is not None:
                self._unheard.clear()
                self._at = at
            self._unheard.pop(heard.epoch, None)
            call = events.decode(heard.raw)
            before = self.standing if left is None else JobState(self._keepers[at].keys.before)
            standing = before.after(call)
            try:
                hear(heard.epoch, call, standing)
            except Exception:  # a bug of spotguard must not end the only thread that receives events
                log.exception("internal error; please report it [SG704]")
            # Set after `hear`: the saver leaves an epoch once it sees it superseded, and must know by then which save replaces it.
            self.standing = standing
        if left is not None:
            log.info("the ranks agree through the second store now")
            self.recall(left, unheard)

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
        if at == self._at and not self.lost:
            self._recall()

    def _superseded(self, epoch: int) -> bool:
        standing = self.standing
        return standing.epoch >= epoch and not standing.counts(epoch)
