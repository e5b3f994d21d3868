"""The measured rate: what the link does, from when its connections are full; nothing stays, and nothing is waited for."""

from __future__ import annotations

import itertools
import threading

import pytest

from spotguard.doctor import throughput
from spotguard.doctor.cleanup import Leftovers
from spotguard.doctor.rate_measurement import Measured, MeasureLimits
from spotguard.doctor.throughput import Measurement
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.errors import FullError
from spotguard.providers.stores.base import Sent
from tests.fakes.clock import ManualClock
from tests.fakes.slow_store import SlowStore
from tests.fakes.store import FakeStore

MIB = 2**20


def measured(store: FakeStore, clock: Clock, most: int = 256 * MIB, ramp: float = 0.5) -> Measured:
    with Leftovers(store, clock) as litter:
        numbers = itertools.count()
        key = lambda: litter.note(f"run-7/probes/{next(numbers)}")  # noqa: E731
        found = Measurement(store, key, litter, clock, MeasureLimits(ramp=ramp, most=most)).run()
    assert store.objects == {}, "nothing of it stays"
    return found


def test_a_link_is_measured_at_its_rate() -> None:
    """Its bytes move the clock."""
    clock = ManualClock()
    found = measured(SlowStore(clock, 20e6), clock)
    assert found.rate == pytest.approx(20e6, rel=0.1)
    assert found.seconds >= MeasureLimits().seconds
    assert found.why == ""


def test_a_slow_link_is_looked_at_for_longer() -> None:
    """Two seconds of it are less than a piece for each connection."""
    clock = ManualClock()
    found = measured(SlowStore(clock, 2e6), clock)
    assert found.rate == pytest.approx(2e6, rel=0.1)
    assert found.seconds > MeasureLimits().seconds


def test_bytes_in_socket_buffers_are_no_rate() -> None:
    """The first bytes leave at once; from then on it is the link's pace."""
    clock = ManualClock()

    class Ahead(SlowStore):
        ahead = 8 * MIB

        def put(self, key: str, data: memoryview, *, sent: Sent | None = None, **said: object) -> None:
            def leaves(count: int) -> None:
                self.rate, self.ahead = (1e12 if self.ahead > 0 else 20e6), self.ahead - count
                assert sent is not None
                sent(count)

            super().put(key, data, sent=leaves)

    assert measured(Ahead(clock, 1e12), clock).rate == pytest.approx(20e6, rel=0.1)


def test_a_fast_store_is_not_filled() -> None:
    """So many bytes and no more, however fast they go."""
    store = SlowStore(ManualClock(), 100e9)
    put: list[int] = []
    plain = store.put

    def counted(key: str, data: memoryview, **said: object) -> None:
        put.append(len(data))
        plain(key, data, **said)  # type: ignore[arg-type]

    store.put = counted  # type: ignore[method-assign]
    found = measured(store, store.clock, most=64 * MIB)
    assert found.rate is not None
    assert sum(put) <= 2 * 64 * MIB


def test_an_object_sent_as_a_whole_is_waited_for() -> None:
    """A server that has all of an object stores it, though the connection is gone: after it was removed, that is."""

    class Heedless(SlowStore):
        cut_off = 0

        def put(self, key: str, data: memoryview, *, sent: Sent | None = None, **said: object) -> None:
            left = len(data)

            def leaves(count: int) -> None:
                nonlocal left
                left -= count
                assert sent is not None
                try:
                    sent(count)
                except BaseException:
                    self.cut_off += left <= 0
                    raise

            super().put(key, data, sent=leaves)

    store = Heedless(ManualClock(), 100e6)
    assert measured(store, store.clock, most=16 * MIB).rate is not None  # its end is an object's
    assert store.cut_off == 0


def test_a_store_that_refuses_says_why() -> None:
    class Full(FakeStore):
        def put(self, key: str, data: memoryview, **said: object) -> None:
            raise FullError("no room; make some")

    found = measured(Full(), SystemClock())
    assert (found.rate, found.why) == (None, "no room; make some")


def test_a_store_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_LONGEST", 0.2)
    monkeypatch.setattr(throughput, "_AHEAD_MOST", 0.1)
    monkeypatch.setattr("spotguard.doctor.rate_measurement._GRACE", 0.1)
    monkeypatch.setattr("spotguard.doctor.cleanup._RETURNING", 0.1)
    never = threading.Event()

    class Still(FakeStore):
        def put(self, key: str, data: memoryview, **said: object) -> None:
            never.wait(60)

    found = measured(Still(), SystemClock(), ramp=0.1)
    never.set()
    assert found.rate is None
    assert found.why == "nothing moved in 0.3 s"


def test_as_many_connections_as_a_save_uses() -> None:
    store = SlowStore(ManualClock(), 100e6)
    store.parallel = 12
    assert measured(store, store.clock).connections == 8


def test_a_link_that_is_slow_for_a_cloud_is_a_warning() -> None:
    found = throughput.told(Measured(9e6, 2**24, 2.0, 8))
    assert (found.state, found.found) == ("warning", "8.6 MiB/s over 8 connections")
    assert "in one region" in found.advice
    assert throughput.told(Measured(11e6, 2**24, 2.0, 8)).state == "ok"


def test_a_rate_that_could_not_be_measured_fails_with_the_reason() -> None:
    found = throughput.told(Measured(None, 0, 0.0, 8, "nothing moved in 11 s"))
    assert (found.state, found.found) == ("fails", "not measured: nothing moved in 11 s")
    assert "network" in found.advice
    assert found.facts["rate"] is None


def test_a_folder_is_not_asked_after_its_network() -> None:
    """A disk has none, and no region."""
    still, slow = (throughput.told(Measured(each, 2**24, 2.0, 4, "x"), folder=True) for each in (None, 9e6))
    assert "df, mount" in still.advice
    assert "region" not in slow.advice
