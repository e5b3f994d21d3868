"""The protocol between a rank and the job's store, as operations: add an event, listen for events, agree on one save.

These are all rules of section "agreeing": the code that runs the operations decides nothing. Between two operations any other
rank may have written anything, and any rank may have died.

* **The log.** The first rank to claim entry number e has it. A rank announces an entry by setting one key for each rank, its
  *bell*. *Before a rank claims number e + 1, e has rung.* If a rank dies between claim and ring, the next caller rings for it.
  So every rank receives every entry, in order: it waits for its own bell of one number after the other. Each rank has a bell of
  its own because a store can wait for all of several keys, but not for one of them. A rank that stops listening rings its own
  bell alone.
* **The decision** of an epoch is claimed too. The rank with the last vote decides, from all votes. A rank that runs out of time
  decides from the votes that are there. Every other rank obeys the first decision, and so does a rank whose claim came second.
* **The second store** lives in another process than the first, with a log of its own. Its entries have higher numbers than all
  entries of the first. Any rank may write there, when the first store does not answer. *A rank that reads an entry there has left
  the first store*: it reads no entry and gives no vote there any more. So each epoch has one store and one decision, and a rank's
  votes only go forward. A wrong suspicion costs nothing, because all ranks that can read the second store leave together.
* **Leaving.** *A rank that leaves the first store, or writes into the second one, first carries its job state there*, unless the
  second log has as much of the first already. So no notice is lost, and no withdrawn one comes back (`job_state`).
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
    """The keys of one incarnation of a job. Launchers give the same store to several, and none sees another's keys."""

    incarnation: str
    world: int
    #: The number before the first entry of this store's log.
    before: int = 0

    def call(self, epoch: int) -> str:
        return f"{self.incarnation}/call/{epoch}"

    def bell(self, rank: int, epoch: int) -> str:
        return f"{self.incarnation}/bell/{rank}/{epoch}"

    def once(self, name: str) -> str:
        return f"{self.incarnation}/once/{name}"

    def offer(self, epoch: int, rank: int) -> str:
        return f"{self.incarnation}/offer/{epoch}/{rank}"

    def offers(self, epoch: int) -> str:
        return f"{self.incarnation}/offers/{epoch}"

    def decision(self, epoch: int) -> str:
        return f"{self.incarnation}/decision/{epoch}"

    def left(self, rank: int) -> str:
        return f"{self.incarnation}/left/{rank}"

    def ring(self, epoch: int) -> Set:
        return Set(tuple((self.bell(rank, epoch), "1") for rank in range(self.world)))


def call(keys: Keys, entry: str, heard: int) -> Saying[int]:
    """Add an entry to the log, and ring for it.

    Args:
        entry: the text of the entry, which no other entry may have.
        heard: number of an entry that is known to be in the log; `keys.before`: none is known.

    Returns:
        The entry's number.
    """
    if heard > keys.before:
        yield keys.ring(heard)
    while True:
        heard += 1
        claimed = yield Claim(keys.call(heard), entry)
        yield keys.ring(heard)
        if claimed == entry.encode():
            # The bells are there for sure only once the store has answered a later operation.
            yield Has((keys.bell(keys.world - 1, heard),))
            return heard


def call_once(keys: Keys, name: str, entry: str, heard: int) -> Saying[None]:
    """Add an entry that any rank may add, unless another one adds it. If that one dies, the wait for it ends, and this one adds it.

    A thousand ranks leave the first store at once. As many entries would cost seconds.

    Args:
        name: name of the entry, the same on all ranks.
    """
    added = f"{keys.once(name)}/added"
    claimed = yield Claim(keys.once(name), entry)
    if claimed != entry.encode() and (yield Wait((added,))) is Waited.THERE:
        return
    yield from call(keys, entry, heard)
    yield Set(((added, "1"),))
    yield Has((added,))


def listen(keys: Keys, rank: int) -> Saying[None]:
    """Deliver entry after entry. Returns when a wait ends without its key."""
    epoch = keys.before
    while True:
        epoch += 1
        if (yield Wait((keys.bell(rank, epoch),))) is not Waited.THERE:
            return
        yield LogEntry(epoch, _one((yield Get((keys.call(epoch),)))))
        # No rank rings the bell before this one again: entry e + 1 is there, and the rank that claims e + 2 rings for e + 1.
        if epoch > keys.before + 1:
            yield Drop((keys.bell(rank, epoch - 1),))


def agree(keys: Keys, epoch: int, offer: Vote) -> Saying[Decision | None]:
    """Vote, and return the decision; None if the epoch does not count any more."""
    yield Set(((keys.offer(epoch, offer.rank), offer.encode()),))
    if (yield Add(keys.offers(epoch))) == keys.world:
        return (yield from _settle(keys, epoch, tuple(range(keys.world))))
    if offer.step is None:  # no other vote can change the decision
        return (yield from _claim(keys, epoch, (offer,)))
    waited = yield Wait((keys.decision(epoch),))
    if waited is Waited.THERE:
        return offers.read_decision(_one((yield Get((keys.decision(epoch),)))))
    if waited is Waited.OVER:
        return None
    present = yield from _present(keys, epoch, tuple(range(keys.world)))
    return (yield from _settle(keys, epoch, present))


def leave(keys: Keys, rank: int, by: int) -> Saying[None]:
    """Report that a rank has stopped listening. It counts once, whoever reports it.

    Args:
        rank: the rank.
        by: the rank that reports it: that one, or another one because that one has gone.
    """
    if (yield Claim(keys.left(rank), str(by))) != str(by).encode():
        return
    if (yield Add(f"{keys.incarnation}/left")) == keys.world:
        yield Set(((_all_left(keys), "1"),))
        yield Has((_all_left(keys),))


def wait_left(keys: Keys) -> Saying[Waited]:
    """Wait until all ranks have called `leave`."""
    waited = yield Wait((_all_left(keys),))
    assert isinstance(waited, Waited)
    return waited


def _settle(keys: Keys, epoch: int, ranks: Sequence[int]) -> Saying[Decision]:
    """Decide from the votes of these ranks, unless another rank has decided. Return the decision that holds."""
    raw = yield Get(tuple(keys.offer(epoch, rank) for rank in ranks))
    assert isinstance(raw, tuple)
    return (yield from _claim(keys, epoch, tuple(offers.read_offer(each) for each in raw)))


def _claim(keys: Keys, epoch: int, heard: Sequence[Vote]) -> Saying[Decision]:
    decision = offers.decide(epoch, keys.world, heard)
    return offers.read_decision(_bytes((yield Claim(keys.decision(epoch), decision.encode()))))


def _present(keys: Keys, epoch: int, ranks: tuple[int, ...]) -> Saying[tuple[int, ...]]:
    """Return those of the ranks whose vote is there. Few are missing, if any, so it asks for halves and not for each one."""
    if (yield Has(tuple(keys.offer(epoch, rank) for rank in ranks))):
        return ranks
    if len(ranks) == 1:
        return ()
    half = len(ranks) // 2
    first = yield from _present(keys, epoch, ranks[:half])
    second = yield from _present(keys, epoch, ranks[half:])
    return first + second


def _all_left(keys: Keys) -> str:
    return f"{keys.incarnation}/all-left"


def _one(answer: object) -> bytes:
    assert isinstance(answer, tuple)
    return _bytes(answer[0])


def _bytes(answer: object) -> bytes:
    assert isinstance(answer, bytes)
    return answer


# The operations on the job's store, as values. The functions above yield them one by one, and `store` runs them. So does a test
# that explores the orders in which the operations of all ranks may come.


@dataclass(frozen=True, slots=True)
class Set:
    """Set values under their keys. They are there for sure once the store has answered a later operation of the same rank."""

    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Add to a counter, which begins at 0. The answer is its new value, an `int`."""

    key: str
    amount: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """Set a value under a key that has none. The answer is the key's value in `bytes`: this one, or the one that came first."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Has:
    """Ask whether all of these keys have a value. The answer is a `bool`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Get the values of keys that are known to be there. The answer is a tuple of `bytes`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for all keys to be there. The answer is a `Waited`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete keys that no rank asks for any more. A store that cannot delete keeps them."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Deliver the next entry of the log; no operation of the store. The answer comes when the rank has handled it."""

    epoch: int
    raw: bytes


class Waited(Enum):
    """How a wait has ended."""

    THERE = "there"
    #: Its time is up.
    LATE = "late"
    #: Its purpose does not count any more.
    OVER = "over"


Operation = Set | Add | Claim | Has | Get | Wait | Drop | LogEntry
#: None: the operation is done and has no other answer.
Answer = None | int | bool | bytes | tuple[bytes, ...] | Waited

T = TypeVar("T")
#: A generator that yields operations, receives the answer to each, and returns its result.
Saying = Generator[Operation, Answer, T]
