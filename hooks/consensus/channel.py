"""`Channel`, a rank's link to the other ranks: its calls, votes and decisions, in the store whose log counts (`failover`)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import SpotguardError, UsageError
from ..ipc import typed_json
from . import barrier, protocol
from .events import VERSION, BackgroundEvent, LogEvent, ManualEvent, RevoteEvent
from .failover import SECOND_STORE, EventHandler, Failover, side
from .job_state import JobState
from .protocol import Keys, Waited
from .stores.connection import SETTLE, SETTLE_MOST, JobStore, StoreSilent, late, within
from .stores.second import SecondStore, reach, second_rank
from .stores.store_client import StoreClient, nothing
from .vote import Decision, Vote

log = logging.getLogger("spotguard")

#: Seconds for the ranks to meet at `join`: they come from a collective.
_MEET = 60.0
#: Seconds for a connection's thread to end, and for each operation at the close.
_JOIN = 2.0


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
        self._clock = clock
        self._keys = Keys(f"spotguard/{incarnation}", world)
        #: This rank's place in the logs of the stores.
        self.failover = Failover(StoreClient(store, self._keys, clock), rank, clock)
        self._clients = self.failover.clients
        #: The clients of the stores that this process serves.
        self._hosted = self._clients[:hosts]
        #: The meetings of all ranks at one place in the script. They are held in the job's own store alone.
        self.meetings = barrier.Meetings(store, self._keys, rank, clock)
        #: The newest epoch that this rank has voted in.
        self._offered = 0
        #: Called once if the first store is gone. It must not block.
        self.orphan: Callable[[], None] = lambda: None
        #: The first rank has warned that there is no second store any more.
        self._warned = False
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
        for line in (*self._clients[0].connections, self.meetings.connection):
            line.say(nothing(), within(self._clock, _MEET))

    def _meet_again(self, second: SecondStore) -> None:
        """Connect all ranks to a second store. If one of them cannot, no rank uses it, and the job has its own store alone."""
        host = second_rank(self.machines)
        served = second.serve() if self.rank == host else ""
        place = self.meetings.tell(served.encode() if self.rank == host else None, _MEET, of=host).decode()
        keys = replace(self._keys, before=SECOND_STORE)
        client = reach(second, place, keys, self._clock) if place else None
        missing = self.meetings.check(client is not None, _MEET)
        if client is not None and missing < 0:
            self._clients.append(client)
            self._hosted += [client] * (self.rank == host)
            return
        if self.rank == 0:
            why = f"rank {missing} cannot reach {place}" if place else f"rank {host} cannot serve one"
            lost = "if this process is lost, the other ranks save nothing"
            log.info("%s: there is no second store, because %s", lost, why)
        if client is not None:
            client.end(_JOIN / 10)

    # --- calls ---

    @property
    def standing(self) -> JobState:
        """The job state after all events that this rank has received."""
        return self.failover.standing

    @property
    def lost(self) -> bool:
        """Whether all stores are gone: this rank receives no events any more."""
        return all(client.gone for client in self._clients[self.failover.at :])

    @property
    def orphaned(self) -> bool:
        """Whether the job's own store is gone, and with it the process that served it: mostly the first rank's."""
        return self._clients[0].gone

    @property
    def gone_rank(self) -> int | None:
        """The rank that is gone with the job's own store; None: there is none.

        This is a guess, because only this rank's connection may have broken. A rank that votes in the second store lives.
        """
        return self.host if self.orphaned else None

    def listen(self, hear: EventHandler) -> None:
        """Have a thread "spotguard-mailbox" call `hear` once for each event, in order. `hear` must not block."""
        for at, client in enumerate(self._clients):
            client.listen(self.rank, partial(self.failover.receive, at, hear), partial(self._gone, at))

    def call(self, call: LogEvent, left: Callable[[], float | None], *, ends: bool = False) -> int:
        """Send an event to all ranks, including this one, and return its number. Any thread may call it.

        Args:
            call: the event.
            left: returns the seconds that are left; None: no limit.
            ends: this process may end right after the call. If it serves the store whose log counts, no other rank might read the
                event there, so it is sent through the second store.

        Raises:
            StoreSilent: the store is gone, or has not answered in time. The ranks may still receive the event.
        """
        if isinstance(call, BackgroundEvent):
            call = replace(call, heard=self.standing.epoch)
        if self.rank == 0 and isinstance(call, (BackgroundEvent, ManualEvent)):
            self._see_second()
        why = StoreSilent("the job's store is gone")
        goes_along = ends and self.failover.current in self._hosted
        for client, seconds in self.failover.turns(left, ends=goes_along):
            self.failover.carry_before(client)
            entry = self.failover.entry(call)
            try:
                number = client.caller.say(protocol.call(client.keys, entry, client.heard), seconds)
            except StoreSilent as error:
                why = error
                continue
            if self.failover.wait_until_read(client, number, call, seconds):
                return number
            # The others have left that store, or it has gone or fallen silent since: nobody may ever read the entry.
        raise why

    def _see_second(self) -> None:
        """Warn once, on the first rank and for all, if the second store is gone while training continues.

        A warning at the loss itself would come at the end of many jobs, in which the other ranks end first.
        """
        second = self.failover.last
        if self._warned or not second.gone or self.failover.current is second:
            return
        self._warned = True
        log.warning(
            "the second store is gone: rank %d has ended, or cannot be reached. Training continues, but the "
            "ranks save nothing if they also lose the job's own store. The next start of the job opens a "
            "second store again [SG504]",
            second_rank(self.machines),
        )

    def revote(self, epoch: int, left: Callable[[], float]) -> None:
        """Have all ranks vote again, in the second store, on a save that was called for in the first one.

        Raises:
            StoreSilent: the second store is gone, too, or has not answered in time.
        """
        client = self.failover.last
        self.failover.carry_before(client)
        adding = self.failover.add_once(RevoteEvent(epoch), f"revote/{epoch}")
        client.caller.say(adding, left, late(self._clock, left() / 2))

    # --- votes ---

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
        if not self.counts(epoch):
            return Decision(
                epoch, None, "a later call has replaced this save"
            )  # no vote, so that no rank relies on this one
        total = left()
        kept = 0.0 if total is None else min(SETTLE_MOST, total * SETTLE)

        def waiting() -> Waited | None:
            if not self.counts(epoch) or over():
                return Waited.OVER
            seconds = left()
            return Waited.LATE if seconds is not None and seconds <= kept else None

        client = self._clients[side(epoch)]
        try:
            if client is not self.failover.current:
                raise StoreSilent("the ranks have left the store in which this save was called for")
            decision = client.agreement.say(
                protocol.agree(client.keys, epoch, offer),
                # A silent store keeps no rank that the others have called to the second one.
                lambda: left() if client is self.failover.current else 0.0,
                waiting,
            )
        except StoreSilent as why:
            if self.failover.wait_until_replaced(epoch, total, over):
                return Decision(epoch, None, "a later call has replaced this save")
            return Decision(epoch, None, str(why))
        if decision is None:
            return Decision(epoch, None, "this save is no longer wanted, or a later call has replaced it")
        self.failover.decided = epoch
        return decision

    def counts(self, epoch: int) -> bool:
        """Return whether a save is the one that counts, as far as this rank has read (see `Failover.counts`)."""
        return self.failover.counts(epoch)

    # --- the end ---

    def close(self, patience: float = 5.0) -> None:
        """Stop listening and end the connections.

        If the store goes while a thread is in its `wait`, the process aborts. So every rank leaves its wait, and the rank that
        hosts the store goes last.

        Args:
            patience: seconds for which the hosting rank waits for the others. No rank waits for a store that is gone, or for the
                rank that is gone with it.
        """
        if self._forgotten or self.failover.closing:
            return
        self.failover.closing = True
        for client in self._clients:
            try:
                client.stop(self.rank, within(self._clock, _JOIN), _JOIN)
                client.caller.say(
                    protocol.leave(client.keys, self.rank, self.rank), within(self._clock, _JOIN)
                )
            except StoreSilent as why:
                log.debug("this rank could not announce its end: %s", why)
        for client in self._hosted:  # after this rank has left every store: another host may wait for it
            try:
                # Its process waits for nothing any more, and reports no end. This one may serve the store that it no longer hears.
                if self.gone_rank not in (None, self.rank):
                    gone = protocol.leave(client.keys, self.gone_rank, self.rank)
                    client.caller.say(gone, within(self._clock, _JOIN))
                wait, seconds = protocol.wait_left(client.keys), within(self._clock, patience + _JOIN)
                client.caller.say(wait, seconds, late(self._clock, patience))
            except StoreSilent as why:
                log.debug("this rank could not wait for the others' end: %s", why)
        self.meetings.connection.close(_JOIN / 10)
        for client in self._clients:
            client.end(_JOIN / 10)

    def forget(self) -> None:
        """Mark this process as a forked child, which must not use the parent's threads and connections."""
        self._forgotten = True

    # --- inside ---

    def _gone(self, at: int, why: Exception) -> None:
        if not isinstance(why, StoreSilent):
            log.error(
                "this rank receives no more notices of other machines; please report it [SG504]",
                exc_info=why,
            )
        elif self.lost:
            log.warning("this rank receives no more notices of other machines: %s [SG504]", why)
        elif at == self.failover.at:
            log.info("the job's store is gone, and the ranks agree through a second one: %s", why)
        else:
            log.debug("the store that this rank does not need is gone: %s", why)
        if at == 0 and not self.lost:
            self.failover.carry_before(self.failover.last)
            self.orphan()
