"""The measured rate of a folder: what is flushed counts, and not what memory takes ahead of it."""

from __future__ import annotations

import itertools

import pytest

from spotguard.doctor.cleanup import Leftovers
from spotguard.doctor.disk_rate import DiskMeasurement
from spotguard.doctor.rate_measurement import Measured, MeasureLimits
from spotguard.providers.errors import FullError
from spotguard.providers.stores.base import Sent
from tests.fakes.clock import ManualClock
from tests.fakes.store import FakeStore
from tests.tiers import few_fast

MIB = 2**20


class Disk(FakeStore):
    """It takes all bytes of an object at once, and then flushes them, one object after the other."""

    def __init__(self, rate: float, flush: float = 0.0) -> None:
        super().__init__()
        self.clock, self.rate, self.flush = ManualClock(), rate, flush
        self.parallel = 1
        self.sizes: list[int] = []

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        super().put(key, data, timeout=timeout, crc32=crc32, sent=sent)
        self.clock.advance(len(data) / self.rate + self.flush)
        self.sizes.append(len(data))


def measured(store: Disk, most: int = 256 * MIB) -> Measured:
    with Leftovers(store, store.clock) as litter:
        numbers = itertools.count()
        key = lambda: litter.note(f"run-7/probes/{next(numbers)}")  # noqa: E731
        found = DiskMeasurement(store, key, litter, store.clock, MeasureLimits(), most).run()
    assert store.objects == {}, "nothing of it stays"
    return found


@pytest.mark.parametrize("rate", few_fast([0.3e6, 5e6, 5e9, 50e6, 500e6], 3))
def test_a_disk_is_measured_by_what_it_has_flushed(rate: float) -> None:
    found = measured(Disk(rate))
    assert found.rate == pytest.approx(rate)
    assert found.seconds <= 11


def test_the_price_of_a_flush_is_not_taken_for_the_pace_of_bytes() -> None:
    """A tenth of a second each: of the small objects of the beginning it would be 10 MB/s."""
    found = measured(Disk(400e6, flush=0.1))
    assert found.rate == pytest.approx(32 * MIB / (32 * MIB / 400e6 + 0.1))


def test_a_fast_disk_is_not_filled() -> None:
    store = Disk(5e9)
    measured(store, 64 * MIB)
    assert sum(store.sizes) <= 2 * 64 * MIB


def test_a_disk_that_is_full_says_so() -> None:
    class Full(Disk):
        def put(self, key: str, data: memoryview, **said: object) -> None:
            raise FullError("no room; make some")

    found = measured(Full(1e6))
    assert (found.rate, found.why) == (None, "no room; make some")
