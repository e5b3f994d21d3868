"""Asking again: what is only away for a while is neither missing nor damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spotguard.hooks.restore.retrying_store import PATIENCE, RetryingStore
from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from spotguard.providers.stores.base import BlobStore, ObjectInfo, StoreMovement
from tests.fakes.called import CalledStore
from tests.fakes.clock import Impatient
from tests.fakes.store import ALL, FakeStore, Fault

WORDS = "Nothing was begun"

VERBS: dict[str, Callable[[BlobStore], Any]] = {
    "put": lambda store: store.put("a/new", memoryview(b"new")),
    "put_if_absent": lambda store: store.put_if_absent("a/new", memoryview(b"new")),
    "get": lambda store: store.get("a/old"),
    "read_into": lambda store: store.read_into("a/old", 0, memoryview(bytearray(3))),
    "list": lambda store: [info.key for info in store.list("a/")],
    "delete": lambda store: store.delete(iter(["a/old"])),
}
assert VERBS.keys() == set(ALL)


def patient(store: FakeStore, clock: Impatient) -> RetryingStore:
    store.put("a/old", memoryview(b"old"))
    store.calls.clear()
    return RetryingStore(store, clock, WORDS)


@pytest.mark.parametrize("verb", ALL)
@pytest.mark.parametrize("error", [UnavailableError, ThrottledError])
def test_a_transient_error_is_retried(
    verb: str, error: type[StoreError], caplog: pytest.LogCaptureFixture
) -> None:
    """Until it answers: the answer is as if nothing had been, and one line says that it was not so."""
    store, clock = FakeStore(), Impatient()
    asked = patient(store, clock)
    store.faults = [Fault(n, error=lambda: error("not now")) for n in range(5)]
    expected, moved = VERBS[verb](patient(FakeStore(), clock)), StoreMovement.count
    assert VERBS[verb](asked) == expected
    assert StoreMovement.count == moved + 6  # a start that asks again is no stall
    assert [each for each, _ in store.calls] == [verb] * 6
    assert clock.waits == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "retries for up to 60 s: not now" in caplog.text


@pytest.mark.parametrize("verb", ALL)
def test_patience_has_an_end(verb: str) -> None:
    """After a minute the error comes out: what the store said, what that means, and what to do; in one line."""
    store, clock = FakeStore(), Impatient()
    asked = patient(store, clock)
    store.faults = [Fault(n) for n in range(1000)]
    with pytest.raises(UnavailableError) as raised:
        VERBS[verb](asked)
    assert clock.now == pytest.approx(PATIENCE)
    assert str(raised.value).startswith(
        "the fake store fails, as it was told to; spotguard retried for 60 s. "
    )
    assert str(raised.value).endswith("Nothing was begun: rerun the command when the store answers")
    assert max(clock.waits) == 2.0


def test_each_request_has_its_own_patience(caplog: pytest.LogCaptureFixture) -> None:
    """A store that comes and goes is used as long as it comes again; that it does so is said once."""
    store, clock = FakeStore(), Impatient()
    asked = patient(store, clock)
    store.faults = [Fault(n) for n in range(100) if n % 25]
    for _ in range(4):
        assert asked.get("a/old") == b"old"
    assert clock.now > PATIENCE
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [NotFoundError, DeniedError, CorruptError, StoreError])
def test_a_permanent_error_comes_out_at_once(error: type[StoreError]) -> None:
    """Also behind failures that it could have helped."""
    store, clock = FakeStore(), Impatient()
    asked = patient(store, clock)
    store.faults = [Fault(0), Fault(1, error=lambda: error("no"))]
    with pytest.raises(error, match=r"^no$"):
        asked.get("a/old")
    assert clock.waits == [0.1]


def test_the_callers_own_deadline_is_kept() -> None:
    """Each request is given what is left of it, and the store's own words come out at its end."""
    store, clock = FakeStore(), Impatient()
    called = CalledStore(store)
    asked = RetryingStore(called, clock, WORDS)
    store.faults = [Fault(n) for n in range(100)]
    with pytest.raises(UnavailableError, match="out of time"):
        asked.get("a/old", timeout=1.0)
    assert [each.timeout for each in called.requests] == pytest.approx([1.0, 0.9, 0.7, 0.3, 0.0])
    assert clock.now == pytest.approx(1.0)


def test_a_listing_that_breaks_off_begins_again() -> None:
    """Half of it would hide the newest checkpoint."""

    class Breaks(FakeStore):
        times = 0

        def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
            for number, info in enumerate([*super().list(prefix)]):
                if number == 1 and self.times < 2:
                    self.times += 1
                    raise UnavailableError("the next page is not there")
                yield info

    store = Breaks()
    for name in ("a/1", "a/2", "a/3"):
        store.put(name, memoryview(b"x"))
    asked = RetryingStore(store, Impatient(), WORDS)
    assert [info.key for info in asked.list("a/")] == ["a/1", "a/2", "a/3"]
    assert store.times == 2
