"""Background checkpoints by way of a disk of this machine: what a restart finds there, here and elsewhere."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks import protocol  # noqa: E402 - after the skip
from spotguard.hooks.agreed import Agreed  # noqa: E402
from spotguard.hooks.checkpoints.catalog import find_whole  # noqa: E402
from spotguard.hooks.checkpoints.effort import Effort  # noqa: E402
from spotguard.hooks.guard import Guard  # noqa: E402
from spotguard.hooks.job import Job as Asked  # noqa: E402
from spotguard.providers.clock import SystemClock  # noqa: E402
from spotguard.providers.errors import FullError, UsageError  # noqa: E402
from spotguard.providers.stores.localfs import FileStore  # noqa: E402
from tests.fakes.clock import ManualClock  # noqa: E402
from tests.fakes.mortal import Life, Mortal  # noqa: E402
from tests.fakes.noticed import Heard, notice, trained  # noqa: E402
from tests.fakes.store import Fault, Killed  # noqa: E402
from tests.fakes.training import Job, different, guarded, restored, seed, small, step_on, trajectory  # noqa: E402
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of this machine."""
    monkeypatch.setenv("SPOTGUARD_STAGE", str(folder / "stage"))
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    return folder / "stage"


def staged(stage: Path) -> dict[str, bytes]:
    """The objects of all checkpoints there, by key."""
    return {
        str(path.relative_to(stage)): path.read_bytes()
        for path in sorted(stage.glob("*/checkpoints/*/*/*.safetensors"))
    }


def objects(store: WatchedStore) -> dict[str, bytes]:
    return {key: data for key, data in store.objects.items() if is_object(key)}


def left_behind(store: WatchedStore) -> None:
    """A process that stages step 2 and gets nothing of it to the store; step 1 is there."""
    with trained(store, steps=1) as (guard, job, heard):
        guard.save()
        heard.wait(protocol.Committed)
        step_on(guard, job, 1)
        store.calls.clear()
        store.faults = [Fault(0, ("put",), error=lambda: FullError("the store takes nothing more"))]
        guard._saver.background()
        settled(guard)
    store.faults.clear()


def settled(guard: Guard) -> None:
    """Until the saving thread has done all that it was asked for."""
    job = Asked("background", guard._saver._effort(None), rehearsal=True)
    guard._saver._jobs.put(job)
    assert job.done.wait(PATIENCE)


def restores(store: WatchedStore, step: int) -> None:
    """Fresh objects get this step, bit for bit."""
    found, state = restored(store, small)
    assert found == step
    assert different(state, trajectory(small, step)[step]) == []


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
        assert guard._checkpointer._snapshot._held == {}
        assert guard._position().checkpoint_step == 2
    assert staged(stage) == objects(store) != {}
    assert store.kinds() == {"objects": 2, "manifests": 1, "markers": 1}
    assert "step 2 is on this machine's disk, and goes to the store from there" in caplog.text
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


def test_what_is_older_than_the_stores_newest_is_left_alone(
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
        begin = guard._checkpointer._stager._fill  # type: ignore[union-attr]

        def spoil(draft):  # type: ignore[no-untyped-def]
            path = stage / next(iter(staged(stage)))
            path.write_bytes(path.read_bytes()[:-1] + b"?")
            return begin(draft)

        guard._checkpointer._stager._fill = spoil  # type: ignore[union-attr,method-assign]
        guard._saver.background()
        guard.save()  # behind it, and to the store directly
        assert [message.step for message in heard.of(protocol.Committed)] == [2]
    assert "is not what was written there: look at that disk" in caplog.text
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
        stager = guard._checkpointer._stager
        assert stager is not None
        begin = stager._fill

        def lose(draft):  # type: ignore[no-untyped-def]
            old = lost == "what it refers to"
            for key in staged(stage):
                if ("/000000001-" in key) is old:
                    (stage / key).unlink()
            return begin(draft)

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
        writer = guard._checkpointer._stager.writer  # type: ignore[union-attr]
        disk, full = writer.store, WatchedStore()
        full.faults = [Fault(1, ("put",), error=lambda: FullError("no room"))]
        writer.store = full
        guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        assert "step 2 is not staged, it is copied to host memory instead: no room" in caplog.text
        assert staged(stage) == {}
        writer.store = disk
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
        guard._checkpointer._stager.writer.store = slow  # type: ignore[union-attr]
        guard._saver.background()
        assert slow.reached.wait(PATIENCE)
        clock.advance(60)
        assert heard.wait(protocol.Committed).step == 2
        assert "nothing is staged in" in caplog.text
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
        guard._checkpointer._stager.writer.store = slow  # type: ignore[union-attr]
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
    for said, reason in (("stage", "is not absolute"), (str(folder / "file" / "stage"), "cannot be used")):
        monkeypatch.setenv("SPOTGUARD_STAGE", said)
        with pytest.raises(UsageError, match=reason), guarded(store, small().values):
            pass
    assert not [key for key in store.objects if "/attempts/" in key]


# --- what stays --------------------------------------------------------------------------------------------------


def test_the_newest_stays_and_the_one_before_it_goes(stage: Path) -> None:
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        for number in range(2, 5):
            guard._saver.background()
            assert heard.wait(protocol.Committed, number - 1).step == number
            step_on(guard, job, number)
    assert {key.split("/")[2][:9] for key in staged(stage)} == {"000000004"}


def test_where_there_is_no_room_for_two_the_uploaded_one_goes(stage: Path) -> None:
    store = WatchedStore()
    with trained(store) as (guard, job, heard):
        guard._stage.room = lambda: 0  # type: ignore[union-attr,method-assign]
        for number in (2, 3):
            guard._saver.background()
            assert heard.wait(protocol.Committed, number - 1).step == number
            step_on(guard, job, number)
        guard.save()
        assert staged(stage) == {}
    restores(store, 4)


# --- what nobody trains ------------------------------------------------------------------------------------------


def adapter() -> Job:
    """A layer that is trained over one that is not."""
    seed()
    base, head = torch.nn.Linear(64, 64).requires_grad_(False), torch.nn.Linear(64, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)
    job = Job({"base": base, "head": head, "optimizer": optimizer})

    def step(number: int) -> None:
        optimizer.zero_grad()
        head(base(torch.randn(4, 64))).square().mean().backward()
        optimizer.step()

    job.step = step
    return job


def test_what_nobody_trains_is_written_once_on_the_disk_and_once_in_the_store(stage: Path) -> None:
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


# --- killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.timeout(300)
def test_killed_at_any_call_the_newest_whole_of_both_is_restored(
    after: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the disk or of the store, at each call in turn; here, and on a machine whose disk is empty."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    states, calls, over = trajectory(small, 3), 0, False
    seen = set()
    while not over:
        stage, store, life = folder / str(calls), WatchedStore(), Life()
        monkeypatch.setenv("SPOTGUARD_STAGE", str(stage))
        killed = one_life(store, stage, life, calls, after=after)
        over = not killed
        elsewhere = step_of(store)
        here = max(elsewhere, step_of(FileStore(stage)))
        seen.add((here, elsewhere))
        step, state = restored(store, small)
        assert (step, different(state, states[step])) == (here, []), f"killed at call {calls}"
        assert step_of(store) == here, f"killed at call {calls}"
        shutil.rmtree(stage)
        step, state = restored(store, small)
        assert (step, different(state, states[step])) == (here, []), f"killed at call {calls}"
        calls += 1
    assert seen == {(2, 2), (3, 2), (3, 3)}


def step_of(store: WatchedStore | FileStore) -> int:
    whole = find_whole(store, "run")
    return -1 if whole is None else whole.name.step


def one_life(store: WatchedStore, stage: Path, life: Life, calls: int, *, after: bool) -> bool:
    """Step 2 is staged and uploaded; then so many calls are left for step 3. Whether they were too few."""
    job = small()
    with guarded(Mortal(store, life), job.values) as guard:
        heard = Heard(guard)
        guard.restore()
        stager = guard._checkpointer._stager
        assert stager is not None
        stager.stage.files = stager.writer.store = Mortal(stager.stage.files, life)  # type: ignore[assignment]
        step_on(guard, job, 0, 1)
        guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        step_on(guard, job, 2)
        settled(guard)
        life.ends(calls, after=after)
        try:
            # On this thread, for a death would end the saving one without a word.
            guard._checkpointer.save(
                guard._state, Agreed(3), "background", Effort(SystemClock()), None, lambda: None
            )
        except Killed:
            return True
    return False
