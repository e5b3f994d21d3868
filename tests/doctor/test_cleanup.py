"""What the doctor puts into a store is removed, also where the doctor is interrupted."""

from __future__ import annotations

from contextlib import suppress

import pytest

from spotguard.doctor.cleanup import Leftovers
from spotguard.doctor.timeouts import Aside
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import WatchedStore

CLOCK = SystemClock()


def test_the_probe_is_removed_when_the_doctor_is_interrupted() -> None:
    store = FakeStore()
    with suppress(KeyboardInterrupt), Leftovers(store, CLOCK) as litter:
        store.put(litter.note("run-7/probes/one"), memoryview(b"x"))
        raise KeyboardInterrupt
    assert store.objects == {}
    assert litter.left == ()


def test_an_object_that_arrives_during_an_interrupt_is_removed_too() -> None:
    """It is waited for, and only then is everything deleted."""
    store = WatchedStore()
    store.hold(lambda key: True)
    with suppress(KeyboardInterrupt), Leftovers(store, CLOCK) as litter:
        key = litter.note("run-7/probes/one")
        litter.putting(Aside(lambda: store.put(key, memoryview(b"x")), "late"))
        assert store.reached.wait(20)
        Aside(lambda: litter.over.wait(20) and store.let_go(), "let go")  # type: ignore[func-returns-value]
        raise KeyboardInterrupt
    assert store.objects == {}


def test_objects_that_remain_after_an_interrupt_are_named(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    store.faults = [Fault(0, ("delete",), error=lambda: DeniedError("no"))]
    with suppress(KeyboardInterrupt), Leftovers(store, CLOCK) as litter:
        store.put(litter.note("run-7/probes/one"), memoryview(b"x"))
        raise KeyboardInterrupt
    assert "stays in fake:///store: delete run-7/probes there" in caplog.text
