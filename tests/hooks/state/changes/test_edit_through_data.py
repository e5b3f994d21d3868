"""An edit of some rows through `.data` or `.numpy()` between boundaries: no checkpoint holds it, and it is named.

Version counters and samples do not see it. It is committed with the step before, and a resumed run makes it twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.guard import Guard
from spotguard.providers.stores.base import BlobStore
from spotguard.testing import preempt
from tests.fakes.clock import ManualClock

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from spotguard.hooks.control.ending.sigterm import Preempted  # noqa: E402
from tests.fakes.training import Job, different, guarded, restored, seed, wait_shut  # noqa: E402
from tests.fakes.watched_store import PATIENCE, WatchedStore  # noqa: E402

ROWS = 400
Edit = Callable[[Any], None]


def decay_rows(weight: Any) -> None:
    weight.data[:50] *= 0.9


def reset_by_numpy(weight: Any) -> None:
    weight.detach().numpy()[7] = 0.5


def swap_rows(weight: Any) -> None:
    kept = weight.data[3].clone()
    weight.data[3] = weight.data[4]
    weight.data[4] = kept


def keep(weight: Any) -> None:
    """No edit."""


EDITS: list[Edit] = [decay_rows, reset_by_numpy, swap_rows]


def make() -> Job:
    seed()
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, 32), torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = Job({"model": model, "optimizer": optimizer})

    def step(number: int) -> None:
        x = torch.randint(0, ROWS, (16,), generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    job.step = step
    return job


def watched(store: BlobStore, values: dict[str, Any]) -> AbstractContextManager[Guard]:
    """A guard for which time stands still: what an audit may take is never used up, and slices are the whole state."""
    return guarded(store, values, clock=ManualClock())


def turns(guard: Guard, job: Job, edit: Edit, first: int, last: int, *, every: int = 1) -> None:
    for number in range(first, last):
        if number % every == 0:
            edit(job.values["model"][0].weight)
        job.step(number)
        guard.step()


def uninterrupted(edit: Edit, total: int, *, every: int = 1) -> dict[str, int]:
    job = make()
    for number in range(total):
        if number % every == 0:
            edit(job.values["model"][0].weight)
        job.step(number)
    return job.bits()


def resumed(store: BlobStore, edit: Edit, total: int, *, every: int = 1) -> dict[str, int]:
    job = make()
    with watched(store, job.values) as guard:
        turns(guard, job, edit, guard.restore(), total, every=every)
        return job.bits()


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_notice_after_an_edit_saves_the_next_boundary(edit: Edit, caplog: pytest.LogCaptureFixture) -> None:
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard, caplog.at_level(logging.WARNING):
        turns(guard, job, edit, guard.restore(), 10)
        edit(job.values["model"][0].weight)
        preempt(guard)
        wait_shut(guard)
        with pytest.raises(Preempted):
            turns(guard, job, keep, 10, 12)
    assert "model/0.weight was changed in place after guard.step() and before optimizer.step()" in caplog.text
    assert different(resumed(store, edit, 20), uninterrupted(edit, 20)) == []


def test_the_very_first_edit_is_found_by_the_save_itself() -> None:
    """Nothing was seen before the notice: the thread that saves compares the slice of this boundary too."""
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 3)
        decay_rows(job.values["model"][0].weight)
        assert guard._state.boundary_only == ""
        preempt(guard)
        wait_shut(guard)
        with pytest.raises(Preempted):
            turns(guard, job, keep, 3, 5)
    assert [name[:9] for name in store.manifests()] == ["000000004"]


@pytest.mark.parametrize("stage", [False, True])
def test_an_edit_before_the_copy_of_a_background_checkpoint_discards_it(
    stage: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The head of a turn runs while the state waits to be copied. One row of 400, in the second turn that there is."""
    if stage:
        monkeypatch.setenv("SPOTGUARD_STAGE", str(tmp_path))
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        begin, begun = threading.Event(), threading.Event()

        def wait(*_: object) -> None:
            begun.set()
            assert begin.wait(PATIENCE)

        turns(guard, job, keep, guard.restore(), 1)
        guard._saver.in_turn(wait)
        assert begun.wait(PATIENCE)
        guard._saver.background()
        reset_by_numpy(job.values["model"][0].weight)
        begin.set()
        job.step(1)
        guard.step()
        store.wait_committed()
        assert [name[:9] for name in store.manifests()] == ["000000002"]
    assert (
        "the state changed while spotguard saved step 1: model/0.weight was changed in place" in caplog.text
    )


def test_an_edit_after_the_copy_is_not_in_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 1)
        expected = job.bits()
        opened = threading.Event()
        open_gate = guard._gate.open

        def let_go() -> None:
            open_gate()
            opened.set()

        monkeypatch.setattr(guard._gate, "open", let_go)
        guard._saver.background()
        assert opened.wait(PATIENCE)
        reset_by_numpy(job.values["model"][0].weight)
        store.wait_committed()
        job.step(1)
        guard.step()
    saved, state = restored(store, make)
    assert saved == 1
    assert different(state, expected) == []


def test_an_edit_of_one_row_at_every_100th_turn_is_found(caplog: pytest.LogCaptureFixture) -> None:
    job = make()
    with watched(WatchedStore(), job.values) as guard:
        guard.restore()
        turns(guard, job, reset_by_numpy, 1, 150, every=100)
        assert "model/0.weight was changed in place" in guard._state.boundary_only


@pytest.mark.parametrize("late", [False, True])
def test_an_optimizer_that_changes_rows_before_its_closure(late: bool) -> None:
    """The gate lets it run up to the end of its closure. `late`: only from its third step on."""
    seed()
    model = torch.nn.Linear(8, 4)

    class Perturbing(torch.optim.SGD):  # type: ignore[misc, name-defined]
        steps = 0

        def step(self, closure: Any = None) -> None:
            if not late or self.steps > 2:
                model.weight.data[0] *= 1.5
            self.steps += 1
            with torch.enable_grad():
                closure()
            super().step()

    optimizer = Perturbing(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        return loss

    with watched(WatchedStore(), {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        for _ in range(5):
            optimizer.step(closure)
            guard.step()
        assert "model/weight was changed in place" in guard._state.boundary_only


def test_weights_that_are_swapped_and_swapped_back_are_no_edit() -> None:
    """An evaluation with other weights, at the head of a turn."""
    job = make()
    with watched(WatchedStore(), job.values) as guard:
        guard.restore()
        for number in range(20):
            weight = job.values["model"][0].weight
            kept = weight.data.clone()
            weight.data.mul_(0.5)
            weight.data.copy_(kept)
            job.step(number)
            guard.step()
        assert guard._state.boundary_only == ""


@pytest.mark.parametrize("why", [KeyboardInterrupt, RuntimeError])
def test_a_reference_that_cannot_be_taken_leaves_the_gate_open(
    why: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while training stands for its checksums, or no thread to be had: who catches it trains on, and saves."""
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 1)

        def fail(*_: object) -> None:
            raise why

        with monkeypatch.context() as patched:
            patched.setattr("spotguard.hooks.state.changes.change_detector._Memory.read", fail)
            if why is KeyboardInterrupt:
                with pytest.raises(KeyboardInterrupt):
                    guard._saver.background()
                assert guard._saver.idle
            else:
                assert guard._saver.background()
        saved: list[int] = []

        def go_on() -> None:
            turns(guard, job, keep, 1, 2)
            saved.append(guard.save().step)

        trained = threading.Thread(target=go_on, daemon=True)
        trained.start()
        trained.join(PATIENCE)
        guard._gate.retire()
        assert saved == [2]


def test_a_plan_that_is_made_meanwhile_does_not_open_the_gate_of_a_checkpoint() -> None:
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 1)
        begin, begun, planned, go_on = (threading.Event() for _ in range(4))

        def wait() -> None:
            begun.set()
            assert begin.wait(PATIENCE)

        def look() -> None:
            planned.set()
            assert go_on.wait(PATIENCE)

        guard._saver.in_turn(wait)
        assert begun.wait(PATIENCE)
        guard._saver.rehearse()
        guard._saver.in_turn(look)
        assert guard._saver.background()
        begin.set()
        assert planned.wait(PATIENCE)
        assert guard._gate.place.shut is not Shut.OPEN
        go_on.set()
        store.wait_committed()
        assert [name[:9] for name in store.manifests()] == ["000000001"]


def test_a_boundary_that_was_left_by_ctrl_c_is_waited_for_no_more() -> None:
    """Several ranks choose a boundary at which this one is to take its checksums, and it is called away there."""
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 1)
        guard._state.audit.want(2)
        job.step(1)
        with pytest.MonkeyPatch.context() as patched:

            def called_away(*_: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(guard._state.audit, "take", called_away)
            with pytest.raises(KeyboardInterrupt):
                guard.step()
        assert guard._state.audit.wanted == -1
        assert guard._state.audit.ready.is_set()


def test_an_edit_while_a_notices_save_is_read_is_found_before_it_is_committed() -> None:
    """The slice of the boundary was the same when the save began. The head of the turn runs beside it."""
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 3)
        collect, weight = guard._state.collect, job.values["model"][0].weight

        def edited() -> Any:
            reset_by_numpy(weight)
            return collect()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(guard._state, "collect", edited)
            preempt(guard)
            wait_shut(guard)
            with pytest.raises(Preempted):
                turns(guard, job, keep, 3, 5)
    assert [name[:9] for name in store.manifests()] == ["000000004"]


@pytest.mark.parametrize("undone", [False, True])
def test_rows_that_are_other_while_a_stage_is_written_are_committed_nowhere(
    undone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """What counts on the disk is found by a process that begins anew, though it never reaches the store."""
    monkeypatch.setenv("SPOTGUARD_STAGE", str(tmp_path))
    store, job = WatchedStore(), make()
    with watched(store, job.values) as guard:
        turns(guard, job, keep, guard.restore(), 1)
        weight = job.values["model"][0].weight.detach().numpy()
        kept = weight[7].copy()
        checkpointer = guard._checkpointer
        assert checkpointer._copies.stager is not None
        staged, begin = checkpointer._copies.stager.writer, checkpointer._copies.stager.writer.queue

        def edited(*args: Any, **kwargs: Any) -> Any:
            weight[7] = 0.5
            queue = begin(*args, **kwargs)
            wait = queue.wait

            def written(*more: Any) -> Any:
                over = wait(*more)
                if undone:
                    weight[7] = kept
                return over

            monkeypatch.setattr(queue, "wait", written)
            return queue

        monkeypatch.setattr(staged, "queue", edited)
        counted: list[str] = []
        commit = checkpointer._committer.queue

        def counts(queue: Any, save: Any, name: Any, *rest: Any, **more: Any) -> Any:
            counted.append(str(name)[:9])
            return commit(queue, save, name, *rest, **more)

        monkeypatch.setattr(checkpointer._committer, "queue", counts)
        guard._saver.background()
        turns(guard, job, keep, 1, 2)
        store.wait_committed()
        assert "model/0.weight was changed in place" in guard._state.boundary_only
        assert [name[:9] for name in store.manifests()] == ["000000002"]
    assert {*counted} == {"000000002"}
