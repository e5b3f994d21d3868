"""The threads, connections and deadlines around what `protocol` says to the job's store."""

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

#: Called with a call's number, the call, and where the job stands after it.
Hearer = Callable[[int, LogEvent, JobState], None]

#: Seconds for the ranks to meet: they come from a collective.
_MEET = 60.0
#: Seconds that one wait of the mailbox may take: c10d counts milliseconds in 32 bits, which are 24 days.
_LONGEST = 20 * 86_400.0
#: Of what is left for agreeing, what is kept to read who is there and to decide without the rest; and at most, in seconds.
_SETTLE, _SETTLE_MOST = 0.2, 1.0
#: Seconds between two looks at a meeting that lasts, at most; and between two signs of life of who does not come yet.
_GLANCE, _BEAT = 1.0, 5.0
#: Silences within which the store answers somebody who waits for signs of life.
_ANSWERED = 10
#: Seconds for a line's thread to end, and for what is said at the end.
_JOIN = 2.0


class Channel:
    """One rank's end. Made by `join`; calls are heard from `listen` on, until `close`."""

    def __init__(
        self, store: JobStore, rank: int, world: int, incarnation: str, clock: Clock, *, hosts: bool
    ) -> None:
        self.rank = rank
        self.world = world
        #: The same on all ranks of one life of the job, and of no other.
        self.incarnation = incarnation
        #: Of each rank, the machine that it runs on.
        self.machines: tuple[str, ...] = ()
        #: Where the job stands, after all calls that were heard.
        self.standing = JobState()
        #: The job's store is gone: nothing is heard any more.
        self.lost = False
        self._store = store  # where this process hosts it, it lives as long as this
        self._clock = clock
        self._hosts = hosts
        self._keys = Keys(f"spotguard/{incarnation}", world)
        self._numbers = itertools.count(1)
        self._tellings, self._gatherings = itertools.count(1), itertools.count(1)
        self._mailbox, self._caller, self._agreement = (
            StoreConnection(f"spotguard-{name}", store, clock) for name in ("mailbox", "caller", "agreement")
        )
        self._meeting = StoreConnection("spotguard-meeting", store, clock, longest=_GLANCE)
        self._lines = [self._mailbox, self._caller, self._agreement, self._meeting]
        #: The newest epoch that this rank has offered for.
        self._offered = 0
        #: Asked again and again while this rank waits for others: raises where it is to wait no longer.
        self.look: Callable[[], None] = lambda: None
        #: Nothing more is heard: this rank leaves.
        self._leaving = False
        #: In a forked child: threads and connections are the parent's.
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
        """Meet the other ranks. On the training thread, of all ranks at once.

        Args:
            machine: a token of this rank's machine, the same for all of its ranks.
            meet: gives the first rank's bytes to all; the only collective, and made here, where there is no hurry. (A
                launcher gives the same store, with all its old keys, to one life of the job after the other.)
            hosts: the store lives in this process, and goes with it.

        Raises:
            UsageError: other ranks speak another version.
            Silent: not all have come.
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
                f"rank {others[0]} runs another version of spotguard than rank {self.rank}: install one version on all machines"
            )
        self.machines = tuple(str(card.get("machine")) for card in cards)
        # Connections are made now, and not at the notice.
        for line in self._lines:
            line.say(_nothing(), self._within(_MEET))

    # --- calls ---

    def listen(self, hear: Hearer) -> None:
        """Have the thread "spotguard-mailbox" call `hear` once for each entry, in order. It must not block."""
        self._mailbox.give(lambda store: self._listen(store, hear))

    def call(self, call: LogEvent, left: Callable[[], float | None]) -> int:
        """Tell all ranks, this one too. Returns the call's number. From any thread.

        Raises:
            Silent: the store is gone, or has not answered before nothing was left. The call may be heard all the same.
        """
        heard = self.standing.epoch
        if isinstance(call, BackgroundEvent):
            call = replace(call, heard=heard)
        entry = events.encode(call, self.rank, next(self._numbers))
        return self._caller.say(protocol.call(self._keys, entry, heard), left)

    def agree(
        self, epoch: int, offer: Vote, left: Callable[[], float | None], over: Callable[[], bool]
    ) -> Decision:
        """Offer, and return what is decided for all. Once for each epoch. On the saving thread.

        Args:
            left: seconds for it. When hardly any are left, it is decided without those that have not offered.
            over: it does not count any more. A call that supersedes this one is seen without it.

        Returns:
            Its step is None where nothing is saved: decided for all; or here alone, where the store is silent, the
            epoch does not count any more, or this rank has offered for it before.
        """
        if epoch <= self._offered:  # it would be counted twice, and what it offered may be decided on already
            return Decision(epoch, None, "this rank has offered for it before")
        self._offered = epoch
        if self._superseded(epoch):
            return Decision(epoch, None, "another call counts by now")  # and nobody is to count on this rank
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
        return decision or Decision(epoch, None, "it is not wanted any more, or another call counts by now")

    # --- meetings ---

    def tell(self, value: bytes | None, patience: float) -> bytes:
        """The first rank's value, for all. On the training thread, of all ranks in the same order.

        Args:
            value: of the first rank; others give None.
            patience: seconds.

        Raises:
            Silent: it has not come.
        """
        saying = barrier.tell(self._keys, next(self._tellings), value if self.rank == 0 else None)
        told = self._meeting.say(saying, self._together(patience), self._late(patience))
        if told is None:
            raise StoreSilent(
                f"rank 0 of {self.world} has not said what all wait for, within {patience:.0f} s"
            )
        return told

    def gather(self, value: bytes, patience: float, *, silence: float | None = None) -> list[bytes]:
        """Everybody's value, in the order of ranks. On the training thread, of all ranks in the same order.

        Args:
            patience: seconds.
            silence: after so many seconds without a sign of life (`beating`) a rank is not waited for any more. None: as
                long as patience lasts.

        Raises:
            Silent: not all have come.
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
                    f"rank {values[0]} of {self.world} has not come where all ranks wait for it, within {patience:.0f} s"
                )
            beats = self.beats(values)
            if still := [rank for rank in values if beats[rank] == seen.get(rank)]:
                raise StoreSilent(
                    f"rank {still[0]} of {self.world} has shown no life for {silence:.0f} s where all ranks wait for it"
                )
            seen = beats

    def beats(self, ranks: Sequence[int]) -> dict[int, int]:
        """How often each of these has shown a sign of life."""
        return self._meeting.say(barrier.beats(self._keys, ranks), self._within(_MEET))

    def beat(self) -> None:
        """Show a sign of life. Not while this rank is in a meeting.

        Raises:
            Silent: the store does not answer.
        """
        self._meeting.say(barrier.beat(self._keys, self.rank), self._within(_BEAT))

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Meanwhile a thread shows signs of life: what this rank does may take hours, and the others wait."""
        done = threading.Event()

        def run() -> None:
            while not done.is_set():
                try:
                    self.beat()
                except StoreSilent as why:  # who is in the next meeting hears of it as well
                    log.debug("no sign of life: %s", why)
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
        """Stop listening. A thread that is still in the store's `wait` when the store goes would abort this process:
        so every rank leaves its wait, and the one that hosts the store goes last.

        Args:
            patience: seconds for which that one waits for the others. A store that is gone is not waited for.
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
            log.debug("the end was not said: %s", why)
        for line in self._lines:
            line.close(_JOIN / 10)  # one that the store keeps is left behind

    def forget(self) -> None:
        """In a forked child: never use what is the parent's."""
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
                log.warning("notices of other machines are not heard any more: %s", why)
        except Exception:  # the others, and whoever saves here, are not to count on an ear that is gone
            self.lost = True
            log.exception("notices of other machines are not heard any more; please report this")

    def _hear(self, heard: Hear, hear: Hearer) -> None:
        call = events.decode(heard.raw)
        standing = self.standing.after(call)
        try:
            hear(heard.epoch, call, standing)
        except Exception:  # a mistake of ours must not end the only thread that hears calls
            log.exception("spotguard failed inside; please report this")
        # Only now: who is agreeing leaves an epoch that it sees superseded, and is to know by then what takes its place.
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
        """What is left of so many seconds from now."""
        end = self._clock.monotonic() + seconds
        return lambda: max(0.0, end - self._clock.monotonic())

    def _together(self, seconds: float) -> Callable[[], float]:
        """As `_within`, on the training thread."""
        left = self._within(seconds)

        def looked() -> float:
            self.look()
            return left()

        return looked

    def _late(self, seconds: float) -> Callable[[], Waited | None]:
        """A wait in the store ends a little before who asked gives up, so as to hear who is missing."""
        left = self._within(seconds - min(_SETTLE_MOST, seconds * _SETTLE))
        return lambda: Waited.LATE if left() <= 0 else None


def _wake(keys: Keys, rank: int, epoch: int) -> Saying[None]:
    """Ring the bell that this rank's own mailbox waits for."""
    yield Set(((keys.bell(rank, epoch), "1"),))
    yield Has((keys.bell(rank, epoch),))


def _nothing() -> Saying[None]:
    yield Has(("spotguard",))
