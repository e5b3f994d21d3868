"""A save that is interrupted, a training that goes back, a guard that ends: what is committed stays the truth."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import spotguard  # noqa: E402 - after the skip
from spotguard.hooks.save.schedule import AUTO_EVERY, CheckpointSchedule  # noqa: E402
from spotguard.providers.errors import FullError, SpotguardError  # noqa: E402
from tests.fakes.agent import FakeAgent  # noqa: E402
from tests.fakes.called import CalledStore, Request  # noqa: E402
from tests.fakes.store import Fault  # noqa: E402
from tests.fakes.training import different, guarded, restored, small, step_on, trajectory  # noqa: E402
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_marker, is_object  # noqa: E402

pytestmark = pytest.mark.torch


class Interrupted(Exception):
    """What a signal handler of the script raises."""


def test_a_save_by_hand_that_is_interrupted_is_never_kept() -> None:
    """Ctrl-C gives the state back to the script: what was read of it before and after is no checkpoint."""
    store, job = WatchedStore(), small()

    times: list[int] = []

    def interrupt(number: int, _: object) -> None:
        times.append(number)
        if len(times) == 1:
            raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with guarded(store, job.values) as guard:
            guard.restore()
            step_on(guard, job, 0)
            store.hold(is_object)

            def ctrl_c() -> None:
                assert store.reached.wait(PATIENCE)
                assert guard._gate.place.shut.value == "before change"
                is_open = False
                for _ in range(
                    200
                ):  # again: between its last look and its wait a thread of Python misses a signal
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                    with guard._gate._changed:  # nobody waits for a put that counts for nothing
                        is_open = guard._gate._changed.wait_for(
                            lambda: guard._gate.place.shut.value == "open", 0.5
                        )
                    if is_open:
                        break
                store.let_go()
                assert is_open

            helper = threading.Thread(target=ctrl_c, name="ctrl-c")
            helper.start()
            with pytest.raises(Interrupted):
                guard.save()
            helper.join(PATIENCE)
            assert store.kinds()["manifests"] == 0
            step_on(guard, job, 1)
            assert guard.save().step == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert different(restored(store, small)[1], trajectory(small, 2)[2]) == []


def test_going_back_makes_what_follows_the_newest() -> None:
    """The timeline that was left behind has a higher step, and is older all the same."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        for number in range(4):
            job.step(number)
            guard.step()
            guard.save()
        assert guard.restore(step=2) == 2
        step_on(guard, job, 2)
        saved = guard.save()
    assert (saved.step, "-0002-" in saved.url) == (3, True)
    step, again = restored(store, small)
    assert step == 3
    assert different(again, trajectory(small, 3)[3]) == []


def test_a_closed_guard_parks_nobody() -> None:
    """Its threads are gone, and with them whoever could open the gate."""
    job = small()
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        guard._gate.close()
        guard.close()
        step_on(guard, job, 0)


def test_a_register_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a connection that answers no notice, nor a hook on the optimizer."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as folder:
        path = Path(folder, "a.sock")
        with FakeAgent(path) as agent:
            monkeypatch.setenv("SPOTGUARD_SOCKET", str(path))
            failed: list[Any] = []

            def register() -> None:
                try:
                    spotguard.register(
                        Path(folder, "a.sock", "x").as_uri(), run_id="r", model=model, optimizer=optimizer
                    )
                except SpotguardError as error:
                    failed.append(error)

            thread = threading.Thread(target=register, name="registers")
            thread.start()
            agent.welcome()
            thread.join(PATIENCE)
            assert failed
            with pytest.raises((AssertionError, socket.timeout)):
                agent.hear(spotguard.hooks.ipc.protocol.Position)  # it has hung up
    assert not optimizer._optimizer_step_pre_hooks
    assert "spotguard-listener" not in [thread.name for thread in threading.enumerate()]


@contextmanager
def registered(monkeypatch: pytest.MonkeyPatch, **state: Any) -> Iterator[tuple[spotguard.Guard, FakeAgent]]:
    """A guard that an agent has let in, and that agent."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as folder:
        path = Path(folder, "a.sock")
        with FakeAgent(path) as agent:
            monkeypatch.setenv("SPOTGUARD_SOCKET", str(path))
            coming = threading.Thread(target=agent.welcome, name="welcomes")
            coming.start()
            with guarded(Path(folder, "store"), state, run_id="r") as guard:
                coming.join(PATIENCE)
                yield guard, agent


def test_status_knows_the_step_as_soon_as_it_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step before; and not the one before the restore."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with registered(monkeypatch, model=model, optimizer=optimizer) as (guard, agent):
        said = agent.hear(spotguard.hooks.ipc.protocol.Position)
        assert (said.step, said.restored_age) == (-1, -1.0)
        before = time.monotonic()
        assert guard.restore() == 0
        while (said := agent.hear(spotguard.hooks.ipc.protocol.Position)).step < 0:
            pass
        assert said.step == 0
        assert 0.0 <= said.restored_age <= time.monotonic() - before


def test_the_agent_hears_how_long_a_save_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first save on: before it nobody has seen the link."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "90")
    with registered(monkeypatch, model=torch.nn.Linear(2, 2)) as (guard, agent):
        said = agent.hear(spotguard.hooks.ipc.protocol.Position)
        assert (said.save_seconds, said.rate, said.interval) == (-1.0, 0.0, 90.0)
        guard.restore()
        guard.save()
        while (said := agent.hear(spotguard.hooks.ipc.protocol.Position)).save_seconds < 0:
            pass
        assert said.rate > 0


def test_a_notice_does_not_wait_for_old_checkpoints_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning stops at the next few objects, and the save that it followed stays committed."""
    monkeypatch.setenv("SPOTGUARD_KEEP", "1")
    job, deletes = small(), list[str]()

    def noticed(request: Request) -> None:
        if request.verb == "delete" and "/checkpoints/" in request.key:
            deletes.append(request.key)
            guard._saver._running.scope.abandon("a notice came")  # type: ignore[union-attr]

    with guarded(CalledStore(WatchedStore(), noticed), job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        guard.save()
        step_on(guard, job, 1)
        assert guard.save().step == 2
        assert len([key for key in deletes if is_marker(key)]) == 1
        assert not [key for key in deletes if is_object(key)]


def test_a_save_that_finds_no_room_gives_back_what_it_took() -> None:
    """Its objects can never be part of a checkpoint, and may be what fills the disk."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        store.calls.clear()
        store.faults = [Fault(at=0, verbs=("put",), after=True, error=lambda: FullError("no room"))]
        with pytest.raises(FullError):
            guard.save()
    assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}


def test_auto_spends_a_tenth_of_the_time_on_uploads() -> None:
    """A checkpoint that takes long is made seldom; one that takes nothing once a minute."""
    cadence = CheckpointSchedule("auto", 0.0)
    cadence.saved(100.0, 30.0)
    assert cadence.due == 400.0
    cadence.saved(500.0, 0.1)
    assert cadence.due == 500.0 + AUTO_EVERY


def test_the_cost_of_a_save_moves_the_next_one() -> None:
    """The guard tells its clockwork what each checkpoint cost."""
    job = small()
    with guarded(WatchedStore(), job.values) as guard:
        guard.restore()
        guard._schedule.due = 0.0
        guard.save()
        assert guard._schedule.due > 0.0
