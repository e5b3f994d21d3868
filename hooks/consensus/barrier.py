"""Meetings of all ranks at one place in the script: one rank tells a value to all, or each rank tells its own.

They are not for emergencies. They use no collective either: a collective that fails leaves the other ranks with a broken group.
Each meeting has a number, since no key is ever written twice. All ranks hold the same meetings in the same order.
"""

from __future__ import annotations

import itertools
import logging
import threading
from binascii import hexlify, unhexlify
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...providers.clock import Clock
from ..ipc.threads import StandingThread
from .protocol import Add, Claim, Drop, Get, Has, Keys, Saying, Set, Wait, Waited
from .stores.connection import JobStore, StoreConnection, StoreSilent, late, within

log = logging.getLogger("spotguard")


def tell(keys: Keys, number: int, value: bytes | None) -> Saying[bytes | None]:
    """Send one rank's value to all others and return it; None if it did not come in time.

    Args:
        number: number of the meeting.
        value: the value, on the rank that sends it; None on all others.
    """
    key = f"{keys.incarnation}/told/{number}"
    if value is not None:
        yield Set(((key, _text(value)),))
        yield Has((key,))  # the value is there for sure only once the store has answered a later operation
        return value
    if (yield Wait((key,))) is not Waited.THERE:
        return None
    return _values((yield Get((key,))))[0]


def gather(keys: Keys, rank: int, number: int, value: bytes) -> Saying[list[bytes] | tuple[int, ...]]:
    """Collect the values of all ranks.

    Returns:
        The values in the order of ranks, as a list; or the ranks whose value did not come in time, as a tuple.
    """
    theirs = tuple(_gathered(keys, number, each) for each in range(keys.world))
    yield Set(((theirs[rank], _text(value)),))
    while (yield Wait(theirs)) is not Waited.THERE:
        if missing := (yield from _missing(theirs)):
            return missing
    values = _values((yield Get(theirs)))
    # Every rank in this meeting has all values of the meeting before the last, so no rank asks for those again.
    yield Drop((_gathered(keys, number - 2, rank),))
    return values


def check(keys: Keys, rank: int, number: int, able: bool) -> Saying[int | None]:
    """Return a rank that is not able to do something; -1 if all ranks are; None if not all have come in time.

    Few operations, as each rank needs one bit of the others' answers, and not all of them.
    """
    unable, all_came = f"{keys.incarnation}/unable/{number}", f"{keys.incarnation}/checked/{number}"
    if not able:
        yield Claim(unable, str(rank))
    if (yield Add(f"{all_came}/count")) == keys.world:
        yield Claim(unable, "-1")
        yield Set(((all_came, "1"),))
        yield Has((all_came,))
    elif (yield Wait((all_came,))) is not Waited.THERE:
        return None
    answer = yield Get((unable,))
    assert isinstance(answer, tuple)
    return int(answer[0])


def beat(keys: Keys, rank: int) -> Saying[None]:
    """Count a beat: this rank lives, but does not come to the meeting yet."""
    yield Add(_beats(keys, rank))


def beats(keys: Keys, ranks: Sequence[int]) -> Saying[dict[int, int]]:
    """Return the number of beats of each of these ranks."""
    counts: dict[int, int] = {}
    for rank in ranks:
        count = yield Add(_beats(keys, rank), 0)
        assert isinstance(count, int)
        counts[rank] = count
    return counts


def _missing(theirs: tuple[str, ...]) -> Saying[tuple[int, ...]]:
    missing: tuple[int, ...] = ()
    for rank, key in enumerate(theirs):
        if not (yield Has((key,))):
            missing += (rank,)
    return missing


def _gathered(keys: Keys, number: int, rank: int) -> str:
    return f"{keys.incarnation}/gathered/{number}/{rank}"


def _beats(keys: Keys, rank: int) -> str:
    return f"{keys.incarnation}/beats/{rank}"


def _text(value: bytes) -> str:
    return hexlify(value).decode()


def _values(answer: object) -> list[bytes]:
    assert isinstance(answer, tuple)
    return [unhexlify(each) for each in answer]


# --- the thread and the deadlines around them ---

#: Most seconds between two polls of the store in a long meeting; and seconds between two beats of a rank that comes later.
_GLANCE, _BEAT = 1.0, 5.0
#: Factor on `silence`: within that time the store must answer a rank that waits for others' beats.
_ANSWERED = 10
#: Seconds for the store to answer a question.
_ASKED = 60.0


class Meetings:
    """The meetings of one rank, and the connection by which it holds them.

    Args:
        store: the job's own store.
        keys: the keys of this job.
        rank: this rank.
        clock: the time.
    """

    def __init__(self, store: JobStore, keys: Keys, rank: int, clock: Clock) -> None:
        self.rank, self.world = rank, keys.world
        self.connection = StoreConnection("spotguard-meeting", store, clock, longest=_GLANCE)
        #: Called again and again while this rank waits for others; it raises if the wait must end.
        self.look: Callable[[], None] = lambda: None
        self._keys = keys
        self._clock = clock
        self._tellings, self._gatherings, self._checks = (itertools.count(1) for _ in range(3))

    def tell(self, value: bytes | None, patience: float, *, of: int = 0) -> bytes:
        """Return one rank's value on all ranks. The training threads of all ranks call it, in the same order.

        Args:
            value: the value, on the rank that sends it; other ranks pass None.
            patience: seconds until it must be there.
            of: the rank that sends it.

        Raises:
            StoreSilent: the value has not come.
        """
        saying = tell(self._keys, next(self._tellings), value if self.rank == of else None)
        delivered = self.connection.say(saying, self._together(patience), late(self._clock, patience))
        if delivered is None:
            raise StoreSilent(
                f"rank {of} of {self.world} has not sent what all ranks wait for within {patience:.0f} s"
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
        number, left = next(self._gatherings), within(self._clock, patience)
        seen: dict[int, int] = {}
        while True:
            answered, last = (patience, patience) if silence is None else (_ANSWERED * silence, silence)
            saying = gather(self._keys, self.rank, number, value)
            values = self.connection.say(saying, self._together(answered), late(self._clock, last))
            if not isinstance(values, tuple):
                return values
            if silence is None or left() < silence:
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

    def check(self, able: bool, patience: float) -> int:
        """Return a rank that is not able to do something; -1 if all are. All ranks call it, in the same order.

        Args:
            able: whether this rank is.
            patience: seconds until all ranks must have come.

        Raises:
            StoreSilent: not all ranks have come.
        """
        saying = check(self._keys, self.rank, next(self._checks), able)
        unable = self.connection.say(saying, self._together(patience), late(self._clock, patience))
        if unable is None:
            raise StoreSilent(
                f"some of the {self.world} ranks have not arrived where all wait for them within {patience:.0f} s"
            )
        return unable

    def beats(self, ranks: Sequence[int]) -> dict[int, int]:
        """Return the number of beats of each of these ranks."""
        return self.connection.say(beats(self._keys, ranks), within(self._clock, _ASKED))

    def beat(self) -> None:
        """Send one beat, a sign that this rank lives. Do not call it while this rank is in a meeting.

        Raises:
            StoreSilent: the store does not answer.
        """
        self.connection.say(beat(self._keys, self.rank), within(self._clock, _BEAT))

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

        thread = StandingThread("spotguard-beats")
        sending = thread.give(run)
        try:
            yield
        finally:
            done.set()
            thread.end()
            sending.done.wait()

    def _together(self, seconds: float) -> Callable[[], float]:
        """Return the function of `within` for the training thread, which also calls `look`."""
        left = within(self._clock, seconds)

        def looked() -> float:
            self.look()
            return left()

        return looked
