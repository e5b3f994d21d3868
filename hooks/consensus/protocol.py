"""What one rank says to the job's store, operation by operation: to call, to hear calls, and to agree on one.

These are the rules of section "agreeing", and all of them: whoever does the operations decides nothing. Between two of
them any other rank may have said anything, and any rank may have died.

* **The log.** Entry number e is claimed once, by whoever is first. *Before number e + 1 is claimed, e has rung*: so an
  entry whose caller died before it could ring is rung by the next caller, and every rank hears every entry, in order,
  by waiting for its own bell of one number after the other. (A bell for each rank, for a store can wait for all of
  several keys, not for one of them: who wants to stop listening rings for itself alone.)
* **The decision** of an epoch is claimed too. Who brings the last offer makes it from all of them; who runs out of time
  makes it from those that are there; everybody else, and whoever came second, obeys it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from . import vote as offers
from .vote import Decision, Vote


@dataclass(frozen=True, slots=True)
class Keys:
    """Where things lie. No incarnation of a job sees another's: launchers give the same store to several."""

    incarnation: str
    world: int

    def call(self, epoch: int) -> str:
        return f"{self.incarnation}/call/{epoch}"

    def bell(self, rank: int, epoch: int) -> str:
        return f"{self.incarnation}/bell/{rank}/{epoch}"

    def offer(self, epoch: int, rank: int) -> str:
        return f"{self.incarnation}/offer/{epoch}/{rank}"

    def offers(self, epoch: int) -> str:
        return f"{self.incarnation}/offers/{epoch}"

    def decision(self, epoch: int) -> str:
        return f"{self.incarnation}/decision/{epoch}"

    def ring(self, epoch: int) -> Set:
        return Set(tuple((self.bell(rank, epoch), "1") for rank in range(self.world)))


def call(keys: Keys, entry: str, heard: int) -> Saying[int]:
    """Add an entry to the log, and ring for it.

    Args:
        entry: unlike every other one.
        heard: a number up to which there are entries.

    Returns:
        Its number.
    """
    if heard:
        yield keys.ring(heard)
    while True:
        heard += 1
        found = yield Claim(keys.call(heard), entry)
        yield keys.ring(heard)
        if found == entry.encode():
            # It counts only once the store has answered after it.
            yield Has((keys.bell(keys.world - 1, heard),))
            return heard


def listen(keys: Keys, rank: int) -> Saying[None]:
    """Hear entry after entry. Returns when a wait is over."""
    epoch = 0
    while True:
        epoch += 1
        if (yield Wait((keys.bell(rank, epoch),))) is not Waited.THERE:
            return
        yield Hear(epoch, _one((yield Get((keys.call(epoch),)))))
        # The bell before this one is not rung again: number e + 1 is there, and who claims e + 2 rings for e + 1.
        yield Drop((keys.bell(rank, epoch - 1),))


def agree(keys: Keys, epoch: int, offer: Vote) -> Saying[Decision | None]:
    """Offer, and hear what is decided. None: the epoch does not count any more."""
    yield Set(((keys.offer(epoch, offer.rank), offer.encode()),))
    if (yield Add(keys.offers(epoch))) == keys.world:
        return (yield from _settle(keys, epoch, tuple(range(keys.world))))
    if offer.step is None:  # there is nothing to wait for
        return (yield from _claim(keys, epoch, (offer,)))
    waited = yield Wait((keys.decision(epoch),))
    if waited is Waited.THERE:
        return offers.read_decision(_one((yield Get((keys.decision(epoch),)))))
    if waited is Waited.OVER:
        return None
    present = yield from _present(keys, epoch, tuple(range(keys.world)))
    return (yield from _settle(keys, epoch, present))


def _settle(keys: Keys, epoch: int, ranks: Sequence[int]) -> Saying[Decision]:
    """Decide from the offers of these ranks, unless it is decided."""
    raw = yield Get(tuple(keys.offer(epoch, rank) for rank in ranks))
    assert isinstance(raw, tuple)
    return (yield from _claim(keys, epoch, tuple(offers.read_offer(each) for each in raw)))


def _claim(keys: Keys, epoch: int, heard: Sequence[Vote]) -> Saying[Decision]:
    decision = offers.decide(epoch, keys.world, heard)
    return offers.read_decision(_bytes((yield Claim(keys.decision(epoch), decision.encode()))))


def _present(keys: Keys, epoch: int, ranks: tuple[int, ...]) -> Saying[tuple[int, ...]]:
    """Those of the ranks whose offer is there. Few are missing, if any: halves are asked for, and not each one."""
    if (yield Has(tuple(keys.offer(epoch, rank) for rank in ranks))):
        return ranks
    if len(ranks) == 1:
        return ()
    half = len(ranks) // 2
    first = yield from _present(keys, epoch, ranks[:half])
    second = yield from _present(keys, epoch, ranks[half:])
    return first + second


def _one(answer: object) -> bytes:
    assert isinstance(answer, tuple)
    return _bytes(answer[0])


def _bytes(answer: object) -> bytes:
    assert isinstance(answer, bytes)
    return answer


# What is asked of the job's store, as values: the functions above say them one by one, `store` does them, and so does a test
# that explores in which order those of all ranks may come.


@dataclass(frozen=True, slots=True)
class Set:
    """Values under their keys. They are there for sure when a later operation of the same rank has been answered."""

    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """To a counter, which begins at 0. Answered by its new value, an `int`."""

    key: str
    amount: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A value under a key that has none. Answered by what is there then, `bytes`: this, or what came first."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Has:
    """Answered by whether all of these keys have a value, a `bool`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Of keys that are known to be there. Answered by their values, a tuple of `bytes`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """For all keys to be there. Answered by a `Waited`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Keys that nobody asks for any more. A store that cannot forget keeps them."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hear:
    """No operation of the store: this entry is the next of the log. It is heard when this is answered."""

    epoch: int
    raw: bytes


class Waited(Enum):
    """How a wait has ended."""

    THERE = "there"
    #: The time for it is over.
    LATE = "late"
    #: What it was for does not count any more.
    OVER = "over"


Operation = Set | Add | Claim | Has | Get | Wait | Drop | Hear
#: None for what has no answer but that it is done.
Answer = None | int | bool | bytes | tuple[bytes, ...] | Waited

T = TypeVar("T")
#: Says operations, is sent the answer of each, and returns.
Saying = Generator[Operation, Answer, T]
