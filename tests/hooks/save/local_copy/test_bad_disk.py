"""A disk that lies, lost something, is full or hangs costs a background checkpoint at most, and is never believed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import FullError, UsageError
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.store import Fault
from tests.fakes.training import different, guarded, restored, small, step_on, trajectory
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object
from tests.hooks.save.local_copy.stages import adapter, left_behind, restores, settled, stage, staged

pytestmark = pytest.mark.torch
__all__ = ["stage"]


# --- what is not believed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut"])
def test_a_damaged_one_gives_way_to_the_stores(
    stage: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next older whole one, wherever it lies; nothing of the damaged one is uploaded."""
    store = WatchedStore()
    left_behind(store)
    path = stage / next(key for key in staged(stage) if "/000000002-" in key)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-3] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    store.calls.clear()
    restores(store, 1)
    assert not [key for verb, key in store.calls if verb == "put" and is_object(key)]


def test_one_that_is_damaged_before_its_upload_is_never_committed(
    stage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes are held against the checksums that were taken when they left the state."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        begin = guard._checkpointer._copies.stager._fill  # type: ignore[union-attr]

        def spoil(write_progress):  # type: ignore[no-untyped-def]
            path = stage / next(iter(staged(stage)))
            path.write_bytes(path.read_bytes()[:-1] + b"?")
            return begin(write_progress)

        guard._checkpointer._copies.stager._fill = spoil  # type: ignore[union-attr,method-assign]
        guard._saver.background()
        guard.save()  # behind it, and to the store directly
        assert [message.step for message in heard.of(protocol.Committed)] == [2]
    assert "differs from what spotguard wrote there: check that disk" in caplog.text
    assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 1}
    restores(store, 2)


@pytest.mark.parametrize("lost", ["what it refers to", "its own"])
def test_a_disk_that_lost_an_object_costs_one_background_checkpoint(
    stage: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """What nobody trains is staged anew, for it is not there; and a disk that does not even give back what it was given a moment
    ago gets nothing more."""
    store, job = WatchedStore(), adapter()
    with guarded(store, job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        step_on(guard, job, 0)
        guard._saver.background()
        heard.wait(protocol.Committed)
        step_on(guard, job, 1)
        stager = guard._checkpointer._copies.stager
        assert stager is not None
        begin = stager._fill

        def lose(write_progress):  # type: ignore[no-untyped-def]
            old = lost == "what it refers to"
            for key in staged(stage):
                if ("/000000001-" in key) is old:
                    (stage / key).unlink()
            return begin(write_progress)

        stager._fill = lose  # type: ignore[method-assign]
        guard._saver.background()
        settled(guard)
        assert store.kinds()["manifests"] == 1
        stager._fill = begin  # type: ignore[method-assign]
        step_on(guard, job, 2)
        guard._saver.background()
        assert heard.wait(protocol.Committed, 2).step == 3
        assert bool(stager.stage.off) is (lost == "its own")
    assert "background checkpoint failed" in caplog.text
    step, state = restored(store, adapter)
    assert (step, different(state, trajectory(adapter, 3)[3])) == (3, [])


def test_a_folder_of_another_store_is_not_believed(stage: Path) -> None:
    """The same run, the same numbers, another history: also where that store was only emptied."""
    store = WatchedStore()
    left_behind(store)
    other = WatchedStore()
    with guarded(other, small().values) as guard:
        assert guard.restore() == 0
    assert restored(other, small)[0] == 0
    assert staged(stage) == {}  # under the number that was claimed again lay another history


def test_a_folder_that_was_another_store_s_makes_room(stage: Path) -> None:
    """What lies there under higher numbers is no newer than ours: ours stays, and each save gets to the store."""
    store = WatchedStore()
    for _ in range(3):
        with trained(store, make=adapter, steps=1) as (guard, _, heard):
            guard._saver.background()
            heard.wait(protocol.Committed)
    other = WatchedStore()
    with trained(other, make=adapter, steps=1) as (guard, job, heard):
        for number in range(1, 4):
            guard._saver.background()
            assert heard.wait(protocol.Committed, number).step == number
            step_on(guard, job, number)
    assert {key.split("/")[2].split("-")[1] for key in staged(stage)} == {"0001"}
    assert restored(other, adapter)[0] == 3


# --- a disk that will not do -------------------------------------------------------------------------------------


def test_a_full_disk_costs_a_warning(stage: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The ordinary way is taken, and the next one is staged again."""
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        writer = guard._checkpointer._copies.stager.writer  # type: ignore[union-attr]
        disk, full = writer.uploads.store, WatchedStore()
        full.faults = [Fault(1, ("put",), error=lambda: FullError("no room"))]
        writer.uploads.store = full
        guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        assert "step 2 is not staged, spotguard copies it to host memory instead: no room" in caplog.text
        assert staged(stage) == {}
        writer.uploads.store = disk
        step_on(guard, job, 2)
        guard._saver.background()
        assert heard.wait(protocol.Committed, 2).step == 3
    assert [key.split("/")[2][:9] for key in staged(stage)] == ["000000003"] * 2
    shutil.rmtree(stage)
    restores(store, 3)


def test_a_disk_that_hangs_holds_training_up_once(stage: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By then it is left alone."""
    store, clock = WatchedStore(), ManualClock()
    with trained(store, clock=clock) as (guard, job, heard):
        slow = WatchedStore()
        slow.hold(is_object)
        guard._checkpointer._copies.stager.writer.uploads.store = slow  # type: ignore[union-attr]
        guard._saver.background()
        assert slow.reached.wait(PATIENCE)
        clock.advance(60)
        assert heard.wait(protocol.Committed).step == 2
        assert "spotguard stages nothing in" in caplog.text
        step_on(guard, job, 2)
        guard._saver.background()
        assert heard.wait(protocol.Committed, 2).step == 3
        assert slow.kinds()["objects"] == 0
        slow.let_go()
    restores(store, 3)


def test_a_notice_does_not_wait_for_the_disk(stage: Path) -> None:
    """Nor for the upload: its own save goes to the store directly."""
    store = WatchedStore()
    with trained(store) as (guard, _, heard):
        slow = WatchedStore()
        slow.hold(is_object)
        guard._checkpointer._copies.stager.writer.uploads.store = slow  # type: ignore[union-attr]
        guard._saver.background()
        assert slow.reached.wait(PATIENCE)
        guard._agent.hear(notice())
        assert heard.wait(protocol.Committed).step == 2
        slow.let_go()
    restores(store, 2)


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_claimed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WatchedStore()
    (folder / "file").write_text("")
    for said, reason in (
        ("stage", "is not an absolute path"),
        (str(folder / "file" / "stage"), "cannot be used"),
    ):
        monkeypatch.setenv("SPOTGUARD_STAGE", said)
        with pytest.raises(UsageError, match=reason), guarded(store, small().values):
            pass
    assert not [key for key in store.objects if "/attempts/" in key]
