"""Meetings of all ranks at one place in the script: one rank tells a value to all, or each rank tells its own.

They are not for emergencies. They use no collective either: a collective that fails leaves the other ranks with a broken group.
Each meeting has a number, since no key is ever written twice. All ranks hold the same meetings in the same order.
"""

from __future__ import annotations

from binascii import hexlify, unhexlify
from collections.abc import Sequence

from .protocol import Add, Drop, Get, Has, Keys, Saying, Set, Wait, Waited


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


def leave(keys: Keys) -> Saying[bool]:
    """Report that this rank has stopped listening, and return whether it is the last."""
    if (yield Add(f"{keys.incarnation}/left")) != keys.world:
        return False
    yield Set(((_all_left(keys), "1"),))
    return bool((yield Has((_all_left(keys),))))


def wait_left(keys: Keys) -> Saying[Waited]:
    """Wait until all ranks have called `leave`."""
    waited = yield Wait((_all_left(keys),))
    assert isinstance(waited, Waited)
    return waited


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


def _all_left(keys: Keys) -> str:
    return f"{keys.incarnation}/all-left"


def _text(value: bytes) -> str:
    return hexlify(value).decode()


def _values(answer: object) -> list[bytes]:
    assert isinstance(answer, tuple)
    return [unhexlify(each) for each in answer]
