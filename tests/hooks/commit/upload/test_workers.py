"""The writer's threads are there before a notice, and one that hangs in a store holds up nobody."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.commit.upload.workers import WorkerPool
from spotguard.hooks.save.shard_writer import ShardWriter
from spotguard.hooks.state.device.host_buffer import HostBuffer
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import UnavailableError
from tests.fakes.called import CalledStore
from tests.fakes.clock import ManualClock
from tests.fakes.store import FakeStore, Fault
from tests.fakes.watched_store import PATIENCE, WatchedStore
from tests.hooks.commit.writes import OBJECT, writer_of

pytestmark = pytest.mark.torch

STATE = [StateTensor("a", torch.arange(1000, dtype=torch.float32))]
BIG = [StateTensor(f"t{n}", torch.zeros(OBJECT // 4)) for n in range(3)]


def saving(writer: ShardWriter, scope: CancelScope) -> tuple[list[str], threading.Thread]:
    """A save on a thread of its own; why it was given up, when it was."""
    ended: list[str] = []

    def save() -> None:
        try:
            writer.write(STATE, CheckpointName(1, 5, 0), scope)
        except Abandoned as why:
            ended.append(str(why))

    thread = threading.Thread(target=save, name="saver")
    thread.start()
    return ended, thread


def test_idle_threads_are_gone_when_the_writer_is_closed() -> None:
    """One that still frees its frame while the interpreter ends would take the process down."""
    putting: set[threading.Thread] = set()
    store = CalledStore(FakeStore(), lambda _: putting.add(threading.current_thread()))
    with writer_of(store) as writer:
        writer.write(BIG, CheckpointName(1, 5, 0), CancelScope(SystemClock()))
        assert any(thread.is_alive() for thread in putting)
    assert not any(thread.is_alive() for thread in putting)


def test_requests_beside_a_save_that_hang_delay_no_later_one() -> None:
    """Not the removal of what they put, and not the question for newer credentials: each hand that hangs is replaced."""
    store, done = WatchedStore(), threading.Event()
    with writer_of(store) as writer:
        writer.uploads.warm(1)
        store.hold(lambda key: True)
        held = [writer.uploads.aside(lambda: store.put("a", memoryview(b""))) for _ in range(5)]
        writer.uploads.aside(done.set)
        assert done.wait(PATIENCE)
        assert not any(each is None or each.done.is_set() for each in held)
        store.let_go()


def test_the_threads_of_a_save_are_there_before_it() -> None:
    """None is started on the way, where Python 3.12 could not at its end; the next save has the same."""
    putting: set[threading.Thread] = set()
    store = CalledStore(FakeStore(), lambda _: putting.add(threading.current_thread()))
    with writer_of(store) as writer:
        writer.uploads.warm(sum(state_tensor.tensor.nbytes for state_tensor in BIG))
        before = set(threading.enumerate())
        for save in range(2):
            writer.write(BIG, CheckpointName(1, 5, save), CancelScope(SystemClock()))
        assert putting <= before
        assert all(thread.daemon and thread.name.startswith("spotguard-writer-") for thread in putting)
    for thread in putting:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize("how", ["deadline", "called off"])
def test_a_put_that_hangs_is_left_behind(how: str) -> None:
    """The save ends at once, nothing more is begun, and the next has a frame that the hung put does not read."""
    store, clock = WatchedStore(), ManualClock()
    with writer_of(store) as writer:
        store.hold(lambda key: "000000005" in key)
        scope = CancelScope(clock, clock.monotonic() + 10)
        ended, thread = saving(writer, scope)
        assert store.reached.wait(PATIENCE)
        if how == "deadline":
            clock.advance(11)
        else:
            scope.abandon("a notice came")
        thread.join(PATIENCE)
        (why,) = ended
        assert why.startswith("out of time; 0.0 of" if how == "deadline" else "a notice came")
        assert store.objects == {}
        hung = writer.uploads.pool.workers[0]
        other = [StateTensor("a", torch.ones(1000))]
        written = writer.write(other, CheckpointName(1, 6, 1), CancelScope(SystemClock()))
        assert hung not in writer.uploads.pool.workers
        store.let_go()
        hung.dismiss()
        hung._thread.join(PATIENCE)
        by_step = {
            key.split("/")[2][:9]: data[written.objects[0].header :] for key, data in store.objects.items()
        }
        assert by_step == {"000000006": other[0].tensor.numpy().tobytes()}  # the other sent nothing more


def test_threads_that_hang_keep_their_memory_from_others() -> None:
    """Their frames count: a save that is called off and begun again has fewer of them, one at least, and all of them later."""
    size, most = 2**20, 6
    go, hung = threading.Event(), threading.Barrier(5)

    def hang(buffer: HostBuffer) -> None:
        hung.wait(PATIENCE)
        go.wait(PATIENCE)

    made = WorkerPool(HostBuffer, most=most * size)
    try:
        behind = made.ready(4, size)
        for worker in behind:
            worker.give(hang, lambda: None)
        hung.wait(PATIENCE)
        assert len(made.ready(4, size)) == most - 4
        go.set()
        for worker in behind:
            worker._thread.join(PATIENCE)
        assert len(made.ready(4, size)) == 4
    finally:
        go.set()
        made.dismiss()


def test_a_deadline_that_moves_earlier_is_kept_by_who_waits() -> None:
    """A second notice with less time: the wait for a hung put ends by it."""
    store, clock = WatchedStore(), ManualClock()
    with writer_of(store) as writer:
        store.hold(lambda key: True)
        scope = CancelScope(clock)
        ended, thread = saving(writer, scope)
        assert store.reached.wait(PATIENCE)
        scope.tighten(clock.monotonic())
        thread.join(PATIENCE)
        (why,) = ended
        assert why.startswith("out of time; 0.0 of")
        store.let_go()


def test_the_stores_last_error_is_kept_when_it_hangs() -> None:
    """Out of time, and why."""
    store = WatchedStore()
    store.faults = [Fault(0, ("put",), error=lambda: UnavailableError("slow down"))]
    with writer_of(store) as writer:
        store.hold(lambda key: bool(store.calls))  # but for the first
        clock = SystemClock()
        with pytest.raises(Abandoned, match="out of time; the last error of the store: slow down"):
            writer.write(STATE, CheckpointName(1, 5, 0), CancelScope(clock, clock.monotonic() + 0.3))
        store.let_go()


def test_a_forked_child_has_no_hands() -> None:
    """Its copy of the threads is not alive, and nothing is given to them."""
    with writer_of(FakeStore()) as writer:
        writer.uploads.warm(1000)
        assert writer.uploads.pool.workers[0].free
        if (pid := os.fork()) == 0:
            os._exit(int(any(worker.free for worker in writer.uploads.pool.workers)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_plan_stays_as_long_as_names_and_shapes_do() -> None:
    """Rehearsed, a save of the same tensors' next values plans nothing; another shape is planned anew."""
    store = FakeStore()
    with writer_of(store) as writer:
        writer.rehearse(STATE)
        planned = writer.plans._held.get(False)
        assert planned is not None
        writer.write(
            [StateTensor("a", torch.ones(1000))], CheckpointName(1, 5, 0), CancelScope(SystemClock())
        )
        assert writer.plans._held.get(False) is planned
        for save, other in enumerate((torch.ones(10, 100), torch.ones(1000).half()), 1):
            written = writer.write(
                [StateTensor("a", other)], CheckpointName(1, 5, save), CancelScope(SystemClock())
            )
            assert writer.plans._held.get(False) is not planned
            assert written.tensors[0].shape == tuple(other.shape)


def test_at_exit_a_worker_that_hangs_is_left_behind_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is started then may be cut off inside torch. The other workers do the work, and a save without any is told."""
    go, hung = threading.Event(), threading.Semaphore(0)

    def hang(buffer: HostBuffer) -> None:
        hung.release()
        go.wait(PATIENCE)

    made = WorkerPool(HostBuffer)
    try:
        first, *rest = made.ready(3, 1000)
        first.give(hang, lambda: None)
        assert hung.acquire(timeout=PATIENCE)
        monkeypatch.setattr("spotguard.hooks.commit.upload.workers.at_exit", lambda: True)
        assert made.ready(3, 1000, left=0.0) == rest
        for worker in rest:
            worker.give(hang, lambda: None)
            assert hung.acquire(timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="the interpreter ends"):
            made.ready(3, 1000, left=0.0)
    finally:
        go.set()
        made.dismiss()
