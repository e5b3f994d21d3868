"""Which put is worth sending a second time."""

from __future__ import annotations

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES
from spotguard.hooks.commit.plan.plan_cache import WritePlanCache
from spotguard.hooks.commit.plan.write_plan import WEIGHTS, StoredObject, WritePlan, WriteProgress
from spotguard.hooks.commit.upload.object_in_flight import ObjectInFlight
from spotguard.hooks.commit.upload.transfer import Transfer
from spotguard.hooks.commit.upload.uploader import Uploader
from spotguard.hooks.commit.upload.workers import PlainBuffer
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import DeniedError, UnavailableError
from tests.cases import cases
from tests.fakes.clock import ManualClock
from tests.fakes.store import FakeStore

pytestmark = pytest.mark.torch


def transfer(
    write_plan: WritePlan, scope: CancelScope | None = None, uploads: Uploader[PlainBuffer] | None = None
) -> Transfer[PlainBuffer]:
    """A transfer whose workers the test plays."""
    work = Transfer(
        uploads or Uploader(FakeStore(), "run", 1, PlainBuffer),
        WriteProgress(write_plan),
        NAME,
        scope or CancelScope(ManualClock()),
        lambda index, buffer: pytest.fail("a worker fills its buffer"),
        lambda buffer: "",
        WritePlanCache(0, 1, lambda nbytes: OBJECT_BYTES),
    )
    work.begin()
    return work


def starts(work: Transfer[PlainBuffer], index: int, nbytes: int = 8) -> ObjectInFlight:
    stored = StoredObject([], NAME)
    return work.flights.starts(index, memoryview(bytes(nbytes)), 0, stored, work.flights.shift)


def arrives(work: Transfer[PlainBuffer], index: int) -> None:
    work.flights.done(starts(work, index))


SIZE, NAME = 4000, CheckpointName(1, 5, 1)


def flight(*, sent: int, moved: float) -> ObjectInFlight:
    """Begun at 10.0."""
    return ObjectInFlight(
        0, memoryview(bytes(SIZE)), 0, StoredObject([], CheckpointName(1, 5, 1)), 10.0, moved=moved, sent=sent
    )


@pytest.mark.parametrize("sent", [0, 3000, SIZE])
@pytest.mark.parametrize(("usual", "still"), [(1.9, 2.0), (None, 4.0)], ids=["as-peers-show", "at-first"])
def test_a_request_that_stands_still_lags(usual: float | None, still: float, sent: int) -> None:
    """Also one that has all its bytes away, and no answer. At first a pause may be the link's."""
    assert not flight(sent=sent, moved=10.5).lags(10.4 + still, usual)
    assert flight(sent=sent, moved=10.5).lags(10.6 + still, usual)


def test_a_pause_among_slow_peers_is_no_standstill() -> None:
    assert not flight(sent=3000, moved=12.0).lags(14.5, usual=3.0)
    assert flight(sent=3000, moved=12.0).lags(15.1, usual=3.0)


def test_a_late_and_slow_request_lags() -> None:
    """A quarter is away after three times what the whole takes others."""
    assert flight(sent=1000, moved=16.0).lags(16.0, usual=2.0)


def test_a_late_request_that_is_nearly_done_does_not_lag() -> None:
    """At its pace the rest is there sooner than another could bring it."""
    assert not flight(sent=3500, moved=16.0).lags(16.0, usual=2.0)


def test_a_request_in_time_does_not_lag() -> None:
    assert not flight(sent=10, moved=14.9).lags(14.9, usual=2.0)


def test_within_a_second_nothing_is_late() -> None:
    assert not flight(sent=10, moved=10.9).lags(10.9, usual=0.1)
    assert flight(sent=10, moved=10.9).lags(11.1, usual=0.1)


def test_small_objects_say_nothing_of_large_ones() -> None:
    """On a slow link one of 32 MiB takes seconds, and lags behind nobody."""
    clock = ManualClock()
    write_plan = WritePlan.of([StateTensor(f"t{n}", torch.ones(2**10)) for n in range(8)], 2**12, 0, 1)
    work = transfer(write_plan, CancelScope(clock, 2000.0))

    def there(index: int, size: int, seconds: float) -> None:
        flight = starts(work, index, size)
        clock.advance(seconds)
        work.flights.done(flight)

    for index in range(4):
        there(index, 100, 0.1)
    large = starts(work, 7, SIZE)
    assert work.flights.usual(large) is None
    for index in range(4, 7):
        there(index, SIZE // 2, 2.0)
    assert work.flights.usual(large) == pytest.approx(2.0)


def test_a_listing_from_before_another_outage_clears_no_doubt() -> None:
    """The store may have lost the objects in the second outage."""
    work = transfer(WritePlan.of([StateTensor("t", torch.ones(8))], 2**12, 0, 1))
    arrives(work, 0)
    work.doubt(UnavailableError("it is away"))
    assert list(work.doubted()) == [0]
    work.doubt(UnavailableError("it is away again"))
    work.looked(1, [0], [])
    assert list(work.doubted()) == [0]
    work.looked(2, [0], [])
    assert work.doubted() == {}


def test_an_object_whose_answer_crossed_an_outage_is_doubted() -> None:
    """The store confirmed it, and another request failed before anybody read the answer."""
    work = transfer(WritePlan.of([StateTensor("t", torch.ones(8))], 2**12, 0, 1))
    work.staff(1)
    crossing = starts(work, 0)
    work.flights.again(crossing)
    work.doubt(UnavailableError("it is away"))
    work.flights.done(crossing)
    assert list(work.doubted()) == [0]
    assert not work.sound()


def test_a_save_that_is_out_of_time_says_how_fast_its_link_was() -> None:
    """Of the whole save, and by its own bytes."""
    clock = ManualClock()
    plan = WritePlan.of([StateTensor("t", torch.ones(2**20))], 2**23, 0, 1)
    work = transfer(plan, CancelScope(clock, clock.monotonic() + 4.0))
    work.flights.sent(starts(work, 0, 2**22), 2**21)
    clock.advance(4.0)
    assert work.amount() == "2.0 of 4.0 MiB at 0.5 MiB/s"


def test_a_put_that_a_store_has_refused_does_not_lag() -> None:
    """It waits for the store. When the store accepts requests again, no put is late, and the link is as fast as before."""
    clock = ManualClock()
    plan = WritePlan.of([StateTensor(f"t{n}", torch.ones(2**10)) for n in range(2)], 2**13, 0, 1)
    uploads = Uploader(FakeStore(), "run", 1, PlainBuffer)
    work = transfer(plan, CancelScope(clock, clock.monotonic() + 60.0), uploads)
    work.staff(2)
    flights = [starts(work, n, SIZE) for n in range(2)]
    clock.advance(1.0)
    work.flights.sent(flights[0], SIZE)
    before = uploads.link.rate(clock.monotonic())
    work.flights.refuse()
    clock.advance(20.0)
    work.flights.again(flights[0])
    assert not any(each.lags(clock.monotonic(), 0.1) for each in flights)
    assert uploads.link.rate(clock.monotonic()) == before


def test_a_refusal_puts_nothing_in_doubt() -> None:
    """The store has answered, and has what it confirmed before."""
    work = transfer(WritePlan.of([StateTensor("t", torch.ones(8))], 2**12, 0, 1))
    arrives(work, 0)
    work.doubt(DeniedError("no"))
    assert work.doubted() == {}
    assert work.sound()


@cases("mib, objects", [(0.01, 1), (1, 2), (4, 4), (30, 8), (100, 8), (300, 10)])
def test_a_small_state_keeps_all_connections_busy(mib: float, objects: int) -> None:
    """Eight of them at first. A large state has objects of 32 MiB."""
    store = FakeStore()
    store.parallel = 12
    uploads = Uploader(store, "run", 1, PlainBuffer)
    rows = max(1, int(mib * 2**20) // 4096)
    size = uploads.object_size(rows * 4096)
    plan = WritePlan.of([StateTensor("t", torch.empty(rows, 1024))], size, 0, 1)
    assert objects <= len(plan.objects) <= objects + 1
    assert uploads.object_size(rows * 4096 + 64) == size
    uploads.close()


def test_an_earlier_shifts_bytes_are_no_rate_of_the_link() -> None:
    """An object that is lost behind the manifest is put again alone: its bytes and its seconds count, and no others."""
    clock, uploads = ManualClock(), Uploader(FakeStore(), "run", 1, PlainBuffer)
    write_plan = WritePlan.of([StateTensor(f"t{n}", torch.ones(2**10)) for n in range(8)], 2**12, 0, 1)
    work = transfer(write_plan, CancelScope(clock, 2000.0), uploads)

    def put(index: int) -> None:
        size = write_plan.objects[index].size
        flight = starts(work, index, size)
        clock.advance(size / 1000.0)
        work.flights.sent(flight, size)
        work.flights.done(flight)

    work.staff(1)
    for index in range(len(write_plan.objects)):
        put(index)
    work.rest()
    work.doubt(UnavailableError("it is away"))
    work.staff(1)
    assert work.doubted()
    work.looked(1, range(8), [0])
    put(0)
    work.rest()
    assert (rate := uploads.link.rate(clock.monotonic())) is not None
    assert rate.expected == pytest.approx(1000.0, rel=0.01)


def transfer_of(*state_tensors: StateTensor) -> Transfer[PlainBuffer]:
    """A transfer of small objects, one for each tensor."""
    work = transfer(WritePlan.of(state_tensors, 2**12, 0, 1))
    work.staff(2)
    return work


def test_an_object_that_is_doubted_during_a_listing_is_looked_at_too() -> None:
    """The listing was of others: that one was accepted, and doubted, while it ran."""
    work = transfer_of(*[StateTensor(f"t{n}", torch.ones(2**10)) for n in range(2)])
    arrives(work, 0)
    work.doubt(UnavailableError("it is away"))
    listed = work.doubted()
    arrives(work, 1)
    work.doubt(UnavailableError("it is away while it is listed"))
    work.looked(2, listed, [])
    assert list(work.doubted()) == [1]
    assert not work.sound()


def test_a_lost_moment_is_not_put_again_by_a_part_of_the_weights() -> None:
    """Their manifest is what is left to save, and the moments had no room."""
    work = transfer_of(StateTensor("w", torch.ones(8)), StateTensor("m", torch.ones(8), tier=Tier.MOMENTS))
    arrives(work, 0)
    arrives(work, 1)
    work.doubt(UnavailableError("it is away"))
    work.begin(WEIGHTS)
    work.staff(1)
    work.looked(1, work.doubted(), [1])
    assert not work.more()
    assert work.sound()
    assert work.write_progress.missing() == [1]


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0), (2, 0), (2, 1)])
def test_lost_objects_go_in_the_order_of_their_tiers(first: int, then: int) -> None:
    """Moments that wait for weights behind them would wait until the deadline."""
    work = transfer_of(*[StateTensor(tier.name, torch.ones(8), tier=tier) for tier in Tier])
    shift = work.flights.shift
    for _ in Tier:
        index = work._next(shift)
        assert index is not None
        arrives(work, index)
    work.write_progress.weights_ahead = True
    for failures, lost in [(1, first), (2, then)]:
        work.doubt(UnavailableError("it is away"))
        work.looked(failures, work.doubted(), [lost])
    assert work.more()
    assert work._next(shift) == min(first, then)


def test_earlier_saves_object_is_looked_at_before_the_moments_go() -> None:
    """The manifest of the weights waits for the look, and for no moment."""
    what = [StateTensor(tier.name, torch.ones(8), tier=tier) for tier in Tier]
    work = transfer(WritePlan.of(what, 2**12, 0, 1))
    (weights,), (frozen,) = (
        work.write_progress.write_plan.indices_of(tier) for tier in Tier if tier in WEIGHTS
    )
    work.flights.spare(frozen, StoredObject([], CheckpointName(1, 4, 0)))
    work._lands(frozen)
    assert not work.doubted(), "one listing for all of them"
    arrives(work, weights)
    work._lands(weights)
    assert work.more()
    assert list(work.doubted()) == [frozen]
