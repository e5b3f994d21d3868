"""Background checkpoints by way of a disk of this machine: what a restart finds there, here and elsewhere."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import FullError
from spotguard.providers.stores.file import FileStore
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import different, guarded, restored, seed, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object
from tests.hooks.save.local_copy.stages import adapter, left_behind, objects, restores, settled, stage, staged

pytestmark = pytest.mark.torch
__all__ = ["stage"]


# --- there and on ------------------------------------------------------------------------------------------------


def test_a_background_checkpoint_goes_to_the_store_over_the_disk(
    stage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same objects under the same names in both places, no copy in host memory, and the store's is a checkpoint
    by itself."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard), caplog.at_level(logging.INFO):
        guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        assert guard._checkpointer._copies.snapshot._blocks == []
        assert guard._position().checkpoint_step == 2
    assert staged(stage) == objects(store) != {}
    assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 1}
    assert "step 2 is staged on this machine's disk, spotguard uploads it from there" in caplog.text
    shutil.rmtree(stage)
    restores(store, 2)


def test_training_goes_on_while_it_is_uploaded(stage: Path) -> None:
    """What comes to the store is the step that was staged, whatever training has made of the state since."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        store.hold(is_object)
        guard._saver.background()
        assert store.reached.wait(PATIENCE)
        step_on(guard, job, 2)
        assert heard.of(protocol.Committed) == []
        assert guard._position().checkpoint_step == -1
        store.let_go()
        assert heard.wait(protocol.Committed).step == 2
    shutil.rmtree(stage)
    restores(store, 2)


def test_a_store_that_fails_leaves_what_is_staged(stage: Path) -> None:
    """The disk's is whole, and nothing of it is in the store: the next one on this machine takes it there."""
    store = WatchedStore()
    left_behind(store)
    assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 1}
    assert find_whole(store, "run").name.step == 1  # type: ignore[union-attr]
    assert find_whole(FileStore(stage), "run").name.step == 2  # type: ignore[union-attr]


# --- a restart on this machine -----------------------------------------------------------------------------------


def test_a_restart_here_reads_no_object_from_the_store(stage: Path) -> None:
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        guard._saver.background()
        heard.wait(protocol.Committed)
    store.calls.clear()
    restores(store, 2)
    assert {verb for verb, _ in store.calls} == {"put", "put_if_absent", "get", "list", "delete"}
    assert not [key for _, key in store.calls if is_object(key)]


def test_a_restart_here_goes_on_from_what_was_not_uploaded(stage: Path) -> None:
    """And uploads it, so that the next start elsewhere has it too."""
    store = WatchedStore()
    left_behind(store)
    restores(store, 2)  # at its end it waits for what is under way
    assert find_whole(store, "run").name.step == 2  # type: ignore[union-attr]
    shutil.rmtree(stage)
    restores(store, 2)


def test_a_restart_elsewhere_has_the_stores(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore()
    left_behind(store)
    monkeypatch.setenv("SPOTGUARD_STAGE", str(stage.parent / "elsewhere"))
    restores(store, 1)


def test_a_staged_checkpoint_older_than_the_stores_newest_is_ignored(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine went on from step 1 to step 2, its own way: a later attempt beats what lies here."""
    store = WatchedStore()
    left_behind(store)
    monkeypatch.delenv("SPOTGUARD_STAGE")
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 1
        seed(7)
        step_on(guard, job, 1)
        state = job.bits()
        guard.save()
    monkeypatch.setenv("SPOTGUARD_STAGE", str(stage))
    assert different(restored(store, small)[1], state) == []


def test_a_restored_step_that_lies_here_only_is_not_committed(stage: Path) -> None:
    """A notice at this very step saves it: the machine's disk goes with it."""
    store = WatchedStore()
    left_behind(store)
    store.hold(lambda key: is_object(key) and "-0001-" in key)  # what is left is not uploaded meanwhile
    job = small()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        assert guard.restore() == 2
        assert guard._position().checkpoint_step == 1
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed)
        assert committed.step == 2
        assert "-0002-" in committed.url
        store.let_go()
    shutil.rmtree(stage)
    restores(store, 2)


def test_going_back_to_a_step_leaves_what_is_newer_on_the_disk(stage: Path) -> None:
    """`restore(step=1)` takes the store's step 1."""
    store = WatchedStore()
    left_behind(store)
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore(step=1) == 1
        assert different(job.bits(), trajectory(small, 1)[1]) == []
        assert guard._position().checkpoint_step == 1
    assert find_whole(store, "run").name.step == 1  # type: ignore[union-attr]


# --- what stays --------------------------------------------------------------------------------------------------


def test_the_newest_stays_and_the_one_before_it_goes(stage: Path) -> None:
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        for number in range(2, 5):
            guard._saver.background()
            assert heard.wait(protocol.Committed, number - 1).step == number
            step_on(guard, job, number)
    assert {key.split("/")[2][:9] for key in staged(stage)} == {"000000004"}


def test_without_room_for_two_the_uploaded_checkpoint_is_deleted(stage: Path) -> None:
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._parts.stage.room = lambda: 0  # type: ignore[union-attr,method-assign]
        for number in (2, 3):
            guard._saver.background()
            assert heard.wait(protocol.Committed, number - 1).step == number
            step_on(guard, job, number)
        guard.save()
        assert staged(stage) == {}
    restores(store, 4)


def test_frozen_tensors_are_written_again_after_damage_is_reported() -> None:
    store, job = WatchedStore(), adapter()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        for number in range(3):
            step_on(guard, job, number)
            if number == 2:
                guard._parts.messages.hear(protocol.CheckpointDamaged("000000001-0001-0000", 1, "a test"))
            guard._saver.background()
            assert heard.wait(protocol.Committed, number + 1).step == number + 1
    large = [key for key, data in objects(store).items() if len(data) > 64 * 64 * 4]
    assert [key.split("/")[2][:9] for key in large] == ["000000001", "000000003"]


def test_frozen_tensors_are_written_once_to_the_stage_and_once_to_the_store(stage: Path) -> None:
    """And lies together again when another process takes to the store what this one left."""
    store, job = WatchedStore(), adapter()
    frozen = 64 * 64 * 4
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        for number in range(3):
            step_on(guard, job, number)
            guard._saver.background()
            assert heard.wait(protocol.Committed, number + 1).step == number + 1
        large = [key for key, data in objects(store).items() if len(data) > frozen]
        assert [key.split("/")[2][:9] for key in large] == ["000000001"]
        assert [key for key, data in staged(stage).items() if len(data) > frozen] == large
        step_on(guard, job, 3)
        store.calls.clear()
        store.faults = [Fault(0, ("put",), error=lambda: FullError("the store takes nothing more"))]
        guard._saver.background()
        settled(guard)
    store.faults.clear()
    step, state = restored(store, adapter)
    assert (step, different(state, trajectory(adapter, 4)[4])) == (4, [])
    shutil.rmtree(stage)
    step, state = restored(store, adapter)
    assert (step, different(state, trajectory(adapter, 4)[4])) == (4, [])
