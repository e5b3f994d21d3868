"""`Channel`, a rank's link to the job's store: the threads, connections and deadlines around `protocol`."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ...providers.clock import Clock
from ...providers.errors import SpotguardError, UsageError
from ..ipc import typed_json
from . import barrier, events, protocol
from . import store as c10d
from .events import VERSION, BackgroundEvent, LogEvent
from .job_state import JobState
from .protocol import Answer, Has, Hear, Keys, Saying, Set, Wait, Waited
from .store import JobStore, StoreConnection, StoreSilent
from .vote import Decision, Vote

log = logging.getLogger("spotguard")

#: Called with an event's number, the event, and the job state after it.
Hearer = Callable[[int, LogEvent, JobState], None]

#: Seconds for the ranks to meet at `join`: they come from a collective.
_MEET = 60.0
#: Seconds that one wait of the mailbox may take: c10d counts milliseconds in 32 bits, which are 24 days.
_LONGEST = 20 * 86_400.0
#: Share of the time left for agreeing, and the most seconds, kept for the end: to read the votes that are there, and decide.
_SETTLE, _SETTLE_MOST = 0.2, 1.0
#: Most seconds between two polls of the store in a long meeting; and seconds between two beats of a rank that comes later.
_GLANCE, _BEAT = 1.0, 5.0
#: Factor on `silence`: within that time the store must answer a rank that waits for others' beats.
_ANSWERED = 10
#: Seconds for a connection's thread to end, and for each operation at the close.
_JOIN = 2.0


class Channel:
    """One rank's end of the channel. `join` makes it. It receives events from `listen` on, until `close`."""

    def __init__(
        self, store: JobStore, rank: int, world: int, incarnation: str, clock: Clock, *, hosts: bool
    ) -> None:
        self.rank = rank
        self.world = world
        #: Name of this life of the job: the same on all its ranks, and in no other life.
        self.incarnation = incarnation
        #: The machine of each rank, in the order of ranks.
        self.machines: tuple[str, ...] = ()
        #: The job state after all events that this rank has received.
        self.standing = JobState()
        #: The job's store is gone: this rank receives no events any more.
        self.lost = False
        self._store = store  # keeps the store alive if this process hosts it
        self._clock = clock
        self._hosts = hosts
        self._keys = Keys(f"spotguard/{incarnation}", world)
        self._numbers = itertools.count(1)
        self._tellings, self._gatherings = itertools.count(1), itertools.count(1)
        self._mailbox, self._caller = (
            StoreConnection(f"spotguard-{name}", store, clock) for name in ("mailbox", "caller")
        )
        self._agreement = StoreConnection("spotguard-agreement", store, clock, first=c10d.first_pause(world))
        self._meeting = StoreConnection("spotguard-meeting", store, clock, longest=_GLANCE)
        self._lines = [self._mailbox, self._caller, self._agreement, self._meeting]
        #: The newest epoch that this rank has voted in.
        self._offered = 0
        #: Called again and again while this rank waits for others; it raises if the wait must end.
        self.look: Callable[[], None] = lambda: None
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

        Raises:
            UsageError: other ranks run another version.
            StoreSilent: not all ranks have come.
        """
        incarnation = meet(secrets.token_hex(8).encode() if rank == 0 else None).decode()
        channel = cls(store, rank, world, incarnation, clock, hosts=hosts)
        try:
            channel._greet(machine)
        except SpotguardError:
            channel.close(0.0)
            raise
        return channel

    def _greet(self, machine: str) -> None:
        card = typed_json.encode({"version": VERSION, "machine": machine})
        cards = [typed_json.decode(each) for each in self.gather(card.encode(), _MEET)]
        others = [each for each, card in enumerate(cards) if card.get("version") != VERSION]
        if others:
            raise UsageError(
                f"rank {others[0]} runs another version of spotguard than rank {self.rank}: install the "
                "same version on all machines"
            )
        self.machines = tuple(str(card.get("machine")) for card in cards)
        # The connections are made here, so that a notice does not wait for them.
        for line in self._lines:
            line.say(_nothing(), self._within(_MEET))

    # --- calls ---

    def listen(self, hear: Hearer) -> None:
        """Have the thread "spotguard-mailbox" call `hear` once for each event, in order. `hear` must not block."""
        self._mailbox.give(lambda store: self._listen(store, hear))

    def call(self, call: LogEvent, left: Callable[[], float | None]) -> int:
        """Send an event to all ranks, including this one, and return its number. Any thread may call it.

        Args:
            call: the event.
            left: returns the seconds that are left; None: no limit.

        Raises:
            StoreSilent: the store is gone, or has not answered in time. The ranks may still receive the event.
        """
        heard = self.standing.epoch
        if isinstance(call, BackgroundEvent):
            call = replace(call, heard=heard)
        entry = events.encode(call, self.rank, next(self._numbers))
        return self._caller.say(protocol.call(self._keys, entry, heard), left)

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
        kept = 0.0 if total is None else min(_SETTLE_MOST, total * _SETTLE)

        def waiting() -> Waited | None:
            if self._superseded(epoch) or over():
                return Waited.OVER
            seconds = left()
            return Waited.LATE if seconds is not None and seconds <= kept else None

        try:
            decision = self._agreement.say(protocol.agree(self._keys, epoch, offer), left, waiting)
        except StoreSilent as why:
            return Decision(epoch, None, str(why))
        return decision or Decision(
            epoch, None, "this save is no longer wanted, or a later call has replaced it"
        )

    # --- meetings ---

    def tell(self, value: bytes | None, patience: float) -> bytes:
        """Return the first rank's value on all ranks. The training threads of all ranks call it, in the same order.

        Args:
            value: the value, on the first rank; other ranks pass None.
            patience: seconds until it must be there.

        Raises:
            StoreSilent: the value has not come.
        """
        saying = barrier.tell(self._keys, next(self._tellings), value if self.rank == 0 else None)
        delivered = self._meeting.say(saying, self._together(patience), self._late(patience))
        if delivered is None:
            raise StoreSilent(
                f"rank 0 of {self.world} has not sent what all ranks wait for within {patience:.0f} s"
            )
        return delivered

    def gather(self, value: bytes, patience: float, *, silence: float | None = None) -> list[bytes]:
        """Return the values of all ranks, in the order of ranks. The training threads of all ranks call it, in the same order.

        Args:
            value: this rank's value.
            patience: seconds until all values must be there.
            silence: seconds without a beat (`beating`) after which this rank no longer waits for another one. None: it waits
                until `patience` ends.

        Raises:
            StoreSilent: not all values have come.
        """
        number, within = next(self._gatherings), self._within(patience)
        seen: dict[int, int] = {}
        while True:
            answered, late = (patience, patience) if silence is None else (_ANSWERED * silence, silence)
            saying = barrier.gather(self._keys, self.rank, number, value)
            values = self._meeting.say(saying, self._together(answered), self._late(late))
            if not isinstance(values, tuple):
                return values
            if silence is None or within() < silence:
                raise StoreSilent(
                    f"rank {values[0]} of {self.world} has not arrived where all ranks wait for it within "
                    f"{patience:.0f} s"
                )
            beats = self.beats(values)
            if still := [rank for rank in values if beats[rank] == seen.get(rank)]:
                raise StoreSilent(
                    f"rank {still[0]} of {self.world} has shown no sign of life for {silence:.0f} s while "
                    "all ranks wait for it"
                )
            seen = beats

    def beats(self, ranks: Sequence[int]) -> dict[int, int]:
        """Return the number of beats of each of these ranks."""
        return self._meeting.say(barrier.beats(self._keys, ranks), self._within(_MEET))

    def beat(self) -> None:
        """Send one beat, a sign that this rank lives. Do not call it while this rank is in a meeting.

        Raises:
            StoreSilent: the store does not answer.
        """
        self._meeting.say(barrier.beat(self._keys, self.rank), self._within(_BEAT))

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Have a thread send beats inside the `with` block, which may take hours while the other ranks wait."""
        done = threading.Event()

        def run() -> None:
            while not done.is_set():
                try:
                    self.beat()
                except StoreSilent as why:  # this rank's next meeting raises it as well
                    log.debug("this rank could not send a sign of life: %s", why)
                self._clock.wait(done, _BEAT)

        thread = threading.Thread(target=run, name="spotguard-beats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

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
        try:
            self._caller.say(_wake(self._keys, self.rank, self.standing.epoch + 1), self._within(_JOIN))
            self._mailbox.close(_JOIN)
            if not self._caller.say(barrier.leave(self._keys), self._within(_JOIN)) and self._hosts:
                self._caller.say(
                    barrier.wait_left(self._keys), self._within(patience + _JOIN), self._late(patience)
                )
        except StoreSilent as why:
            log.debug("this rank could not announce its end: %s", why)
        for line in self._lines:
            line.close(_JOIN / 10)  # a thread that hangs in the store is left behind

    def forget(self) -> None:
        """Mark this process as a forked child, which must not use the parent's threads and connections."""
        self._forgotten = True

    # --- inside ---

    def _listen(self, store: JobStore, hear: Hearer) -> None:
        try:
            saying: Saying[None] = protocol.listen(self._keys, self.rank)
            operation = next(saying)
            while True:
                answer: Answer = None
                if isinstance(operation, Hear):
                    self._hear(operation, hear)
                elif isinstance(operation, Wait):
                    answer = self._wait(store, operation)
                else:
                    answer = c10d.do(store, operation)
                operation = saying.send(answer)
        except StopIteration:
            return
        except StoreSilent as why:
            self.lost = True
            if not self._leaving:
                log.warning("this rank receives no more notices of other machines: %s [SG504]", why)
        except Exception:  # other ranks and this rank's saver must not rely on a listener that has ended
            self.lost = True
            log.exception("this rank receives no more notices of other machines; please report it [SG504]")

    def _hear(self, heard: Hear, hear: Hearer) -> None:
        call = events.decode(heard.raw)
        standing = self.standing.after(call)
        try:
            hear(heard.epoch, call, standing)
        except Exception:  # a bug of spotguard must not end the only thread that receives events
            log.exception("internal error; please report it [SG704]")
        # Set after `hear`: the saver leaves an epoch once it sees it superseded, and must know by then which save replaces it.
        self.standing = standing

    def _wait(self, store: JobStore, operation: Wait) -> Waited:
        while not self._leaving:
            if c10d.wait(store, operation.keys, _LONGEST):
                break
        return Waited.OVER if self._leaving else Waited.THERE

    def _superseded(self, epoch: int) -> bool:
        standing = self.standing
        return standing.epoch >= epoch and not standing.counts(epoch)

    def _within(self, seconds: float) -> Callable[[], float]:
        """Return a function that returns how many of these seconds, counted from now, are left."""
        end = self._clock.monotonic() + seconds
        return lambda: max(0.0, end - self._clock.monotonic())

    def _together(self, seconds: float) -> Callable[[], float]:
        """Return the function of `_within` for the training thread, which also calls `look`."""
        left = self._within(seconds)

        def looked() -> float:
            self.look()
            return left()

        return looked

    def _late(self, seconds: float) -> Callable[[], Waited | None]:
        """Return a function that ends a wait in the store a little before `seconds` are over.

        The time that remains serves to read which ranks are missing.
        """
        left = self._within(seconds - min(_SETTLE_MOST, seconds * _SETTLE))
        return lambda: Waited.LATE if left() <= 0 else None


def _wake(keys: Keys, rank: int, epoch: int) -> Saying[None]:
    """Ring the bell that this rank's own mailbox waits for, so that it stops listening."""
    yield Set(((keys.bell(rank, epoch), "1"),))
    yield Has((keys.bell(rank, epoch),))


def _nothing() -> Saying[None]:
    yield Has(("spotguard",))
