"""Which requests fly: never in more frames than there are, a laggard twice, and whichever arrives first counts."""

from __future__ import annotations

import random

import pytest

from spotguard.hooks.checkpoint.format.manifest import Chunk
from spotguard.hooks.restore.reads.ranges import (
    LAG,
    LEAST,
    MAX_BUFFERS,
    REQUEST_BYTES,
    ROOM,
    SPARE,
    ByteRange,
    ReadBatch,
    ReadRequest,
    RequestsInFlight,
    WantedChunk,
)
from tests.cases import cases


def loads(*parts: int) -> list[ReadBatch]:
    """Loads of so many requests each."""
    wanted = WantedChunk("k", Chunk((0,), (1,), 0, 0, 1, 0), 1, "t")
    return [ReadBatch(tuple(ByteRange("k", n, n + 1) for n in range(each)), (wanted,)) for each in parts]


def begun(flights: RequestsInFlight[int], now: float) -> ReadRequest[int]:
    piece = flights.begin(now)
    assert piece is not None
    return piece


def usual(flights: RequestsInFlight[int], *, took: float = 0.1, count: int = 3) -> None:
    """Some that say what is usual."""
    for _ in range(count):
        piece = begun(flights, 0.0)
        assert flights.arrived(piece, 0, took)
        flights.done(piece.load)


def test_memory_is_bounded_well_below_what_a_save_may_take() -> None:
    """Law 9's 512 MiB, whatever the state's size."""
    assert MAX_BUFFERS * REQUEST_BYTES <= 256 * 2**20


def test_nothing_begins_without_a_frame() -> None:
    """And goes on when a load is done."""
    flights = RequestsInFlight[int](loads(*[2] * ROOM))
    pieces = [begun(flights, 0.0) for _ in range(ROOM)]
    assert flights.begin(0.0) is None
    assert flights.arrived(pieces[0], 7, 1.0)
    assert not flights.complete(pieces[0])
    assert flights.begin(0.0) is None, "its bytes wait for the other part"
    assert flights.arrived(pieces[1], 8, 1.0)
    assert flights.complete(pieces[1])
    assert flights.done(0) == [7, 8]
    assert flights.begin(0.0) is not None


def test_a_request_that_lags_is_sent_once_more() -> None:
    """After so many times what is usual, and not before."""
    flights = RequestsInFlight[int](loads(*[1] * 5))
    usual(flights, took=1.0)
    late = begun(flights, 10.0)
    assert flights.laggard(10.0 + LAG - 0.01) is None
    assert flights.laggard(10.0 + LAG) is late
    assert flights.laggard(99.0) is None


def test_a_request_below_a_second_is_no_laggard() -> None:
    """A store's own spread."""
    flights = RequestsInFlight[int](loads(*[1] * 4))
    usual(flights, took=0.001)
    late = begun(flights, 0.0)
    assert flights.laggard(LEAST - 0.01) is None
    assert flights.laggard(LEAST) is late


def test_without_peers_nobody_lags() -> None:
    flights = RequestsInFlight[int](loads(1, 1, 1))
    usual(flights, count=2)
    begun(flights, 0.0)
    assert flights.laggard(1000.0) is None


def test_a_large_request_does_not_lag_behind_small_ones() -> None:
    """Through 100 Mbit/s, small tensors come in no time and 8 MiB in eight seconds: sent again, each would take from the
    link that it waits for."""
    small, large = loads(*[1] * 3), loads(*[1] * 5)
    large = [ReadBatch((ByteRange("k", 0, REQUEST_BYTES),), load.chunks) for load in large]
    flights = RequestsInFlight[int]([*small, *large])
    usual(flights, took=0.05)
    first = [begun(flights, 0.0) for _ in range(4)]
    assert flights.laggard(60.0) is None
    for piece in first[:3]:
        assert flights.arrived(piece, 0, 8.0)
    assert flights.laggard(8.0 * LAG - 0.1) is None
    assert flights.laggard(8.0 * LAG) is first[3]


def test_a_link_that_slows_down_makes_no_laggards_for_long() -> None:
    """What is usual is what came last."""
    flights = RequestsInFlight[int](loads(*[1] * 101))
    usual(flights, count=60)
    usual(flights, took=20.0, count=40)
    begun(flights, 0.0)
    assert flights.laggard(LAG * 20.0 - 0.1) is None


@pytest.mark.parametrize("first", ["the first", "the second"])
def test_the_answer_that_arrives_first_counts(first: str) -> None:
    """The other's frame is the caller's again, and only then is it out of use."""
    flights = RequestsInFlight[int](loads(*[1] * 4))
    usual(flights)
    piece = begun(flights, 0.0)
    assert flights.laggard(5.0) is piece
    assert flights.in_use == 2
    assert flights.arrived(piece, 1 if first == "the first" else 2, 6.0)
    buffers = flights.done(piece.load)
    assert buffers == [1 if first == "the first" else 2]
    assert flights.in_use == 1, "the other may still be written to"
    assert not flights.arrived(piece, 3, 7.0)
    assert flights.in_use == 0


def test_a_failure_counts_only_when_nobody_else_brings_it() -> None:
    """Of two in flight the first failure is nothing; nor is one behind an arrival."""
    flights = RequestsInFlight[int](loads(*[1] * 5))
    usual(flights)
    piece = begun(flights, 0.0)
    assert flights.laggard(5.0) is piece
    assert not flights.counts(piece)
    assert flights.counts(piece)
    other = begun(flights, 5.0)
    assert flights.laggard(50.0) is other
    assert flights.arrived(other, 1, 51.0)
    assert not flights.counts(other)


def test_so_many_are_sent_twice_and_no_more() -> None:
    """A store that hangs as a whole does not get everything twice."""
    flights = RequestsInFlight[int](loads(*[1] * 20))
    usual(flights)
    for _ in range(10):
        begun(flights, 0.0)
    again = [flights.laggard(5.0) for _ in range(10)]
    assert [piece is not None for piece in again] == [True] * SPARE + [False] * (10 - SPARE)


@cases("seed", range(20))
def test_frames_are_never_more_than_there_are(seed: int) -> None:
    """However requests arrive, lag, fail and hang: seeded. And everything is done in the end."""
    chance = random.Random(seed)
    parts = [chance.choice([1, 1, 1, 2, ROOM]) for _ in range(40)]
    flights = RequestsInFlight[int](loads(*parts))
    flying: list[ReadRequest[int]] = []
    done, now, most = 0, 0.0, 0
    while done < len(parts):
        now += chance.random()
        if (piece := flights.begin(now)) is not None:
            flying.append(piece)
        if chance.random() < 0.5 and (piece := flights.laggard(now)) is not None:
            flying.append(piece)
        most = max(most, flights.in_use)
        assert flights.in_use <= MAX_BUFFERS
        if flying and (chance.random() < 0.5 or flights.in_use >= ROOM):
            piece = flying.pop(chance.randrange(len(flying)))
            if chance.random() < 0.2 and not flights.counts(piece):
                continue
            if flights.arrived(piece, 1, now) and flights.complete(piece):
                flights.done(piece.load)
                done += 1
    while flying:
        assert not flights.arrived(flying.pop(), 1, now)
    assert flights.in_use == 0
    assert most >= ROOM
