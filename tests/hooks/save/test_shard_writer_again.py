"""What fails for now, lags or arrives damaged is sent again, and what is refused is not."""

from __future__ import annotations

import threading

import pytest
import torch

from spotguard.hooks.checkpoint.format.crc import crc32
from spotguard.hooks.checkpoint.format.keys import checkpoint_prefix
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.plan.write_plan import StoredObject, WriteProgress, WrittenState
from spotguard.hooks.commit.upload.retry import retry
from spotguard.hooks.commit.upload.transfer import Transfer
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import CorruptError, StoreError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.clock import Impatient, ManualClock
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import PATIENCE, WatchedStore
from tests.hooks.commit.writes import NAME, OBJECT, state_tensors, write, writer_of

pytestmark = pytest.mark.torch


def test_a_transient_failure_is_retried_and_a_refusal_is_not() -> None:
    """The same bytes under the same key, so asking again is safe."""
    store = FakeStore()
    store.faults = [Fault(0), Fault(1, after=True)]
    written = write(store, state_tensors(a=torch.ones(4)))
    assert [verb for verb, _ in store.calls] == ["put"] * 3
    assert len({key for _, key in store.calls}) == 1
    assert len(written.objects) == 1


def test_pauses_grow_and_end_with_the_save() -> None:
    """0.1 s, doubled up to 2 s, the last cut by the deadline; and what the store said last is kept."""
    clock, offered = Impatient(), []

    def ask(left: float | None) -> None:
        offered.append(left)
        raise UnavailableError("not now")

    with pytest.raises(Abandoned, match="out of time; the last error of the store: not now"):
        retry(CancelScope(clock, 6.0), ask)
    assert clock.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 0.9]
    assert offered == pytest.approx([6.0, 5.9, 5.7, 5.3, 4.5, 2.9, 0.9])


def test_an_answer_takes_the_seconds_of_the_request_that_brought_it() -> None:
    """Not those for which the store was away: the next commit is planned by it."""
    clock, tries = Impatient(), []
    with writer_of(FakeStore()) as writer:

        def ask(left: float | None) -> None:
            tries.append(left)
            clock.now += 0.25
            if len(tries) < 6:
                raise UnavailableError("away")

        assert writer.uploads.ask(ask, CancelScope(clock)) == 0.25
        assert clock.now > 5
        assert writer.uploads.ask(ask, CancelScope(clock), again=False) == 0.25


def test_an_error_that_cannot_heal_ends_at_once() -> None:
    """A refused put is not repeated."""
    calls: list[int] = []

    def ask(left: float | None) -> None:
        calls.append(1)
        raise StoreError("never")

    with pytest.raises(StoreError, match="never"):
        retry(CancelScope(ManualClock()), ask)
    assert calls == [1]


class Lame(CalledStore):
    """The first put of one object hangs."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store, self._hangs)
        self.hangs, self.go = threading.Event(), threading.Event()

    def puts(self) -> int:
        """Of that object."""
        return sum(each.key.endswith("/0001.safetensors") for each in self.requests)

    def _hangs(self, request: Request) -> None:
        if request.key.endswith("/0001.safetensors") and self.puts() == 1:
            self.hangs.set()
            assert self.go.wait(PATIENCE)


def test_a_put_that_lags_is_sent_again() -> None:
    """Near a deadline, by a thread that has nothing else to do: the save is whole though the first one still hangs."""
    store, clock = WatchedStore(), ManualClock()
    lame = Lame(store)
    with writer_of(lame) as writer:
        what = state_tensors(**{f"t{n}": torch.full((OBJECT // 4,), float(n)) for n in range(5)})
        ended: list[WrittenState] = []
        thread = threading.Thread(
            target=lambda: ended.append(writer.write(what, NAME, CancelScope(clock, 2000.0))), name="saving"
        )
        thread.start()
        store.wait_for(lambda keys: len(keys) >= 5 and not any("0001.safetensors" in key for key in keys))
        assert lame.hangs.wait(PATIENCE)
        clock.advance(5.0)
        thread.join(PATIENCE)
        written = ended[0]
        assert lame.puts() == 2
        assert not lame.go.is_set()
        for entry in written.objects:
            data = store.objects[checkpoint_prefix("run", NAME) + entry.name]
            assert len(data) == entry.size
        lame.go.set()


def test_a_frame_that_is_in_use_again_is_not_sent_in_the_place_of_a_late_object() -> None:
    """The first put has come back while the second was copying: what was copied is another object's bytes."""
    store = FakeStore()
    with writer_of(store) as writer:
        what = state_tensors(a=torch.ones(4))
        write_plan = writer.plans.of(what)
        work = Transfer(
            writer.uploads,
            WriteProgress(write_plan),
            NAME,
            CancelScope(Impatient(), 2000.0),
            lambda index, buffer: pytest.fail("a worker fills its buffer"),
            lambda buffer: "",
            writer.plans,
        )
        work.begin()
        shift = work.staff(1)
        size = write_plan.nbytes
        reused, right = memoryview(bytes(size)), memoryview(b"x" * size)
        late = work.flights.starts(0, reused, crc32(right), StoredObject([0], NAME), shift)
        work.send_again(shift, HostBuffer(size), late)
        assert store.calls == [], "nothing was sent"
        assert not work.write_progress.stored
        late.data = right
        work.send_again(shift, HostBuffer(size), late)
        assert list(store.objects.values()) == [bytes(right)]


def test_nobody_sends_twice_without_a_deadline() -> None:
    """A background save has time, and the link is training's too."""
    lame = Lame(FakeStore())
    threading.Timer(0.3, lame.go.set).start()
    with writer_of(lame) as writer:
        writer.write(
            state_tensors(**{f"t{n}": torch.zeros(OBJECT // 4) for n in range(3)}),
            NAME,
            CancelScope(SystemClock()),
        )
        assert lame.puts() == 1


@pytest.mark.parametrize(("failures", "ends"), [(2, True), (3, False)])
def test_bytes_that_arrive_damaged_are_sent_again(failures: int, ends: bool) -> None:
    """A few times: a store that refuses them for ever is not asked for ever, and no object of it stays."""
    store = FakeStore()
    store.faults = [Fault(at, ("put",), error=lambda: CorruptError("BadDigest")) for at in range(failures)]
    if ends:
        write(store, state_tensors(a=torch.ones(3)))
        assert len(store.objects) == 1
    else:
        with pytest.raises(CorruptError):
            write(store, state_tensors(a=torch.ones(3)))
        assert not store.objects
