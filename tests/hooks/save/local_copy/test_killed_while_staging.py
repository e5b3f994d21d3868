"""Killed at any call, the newest whole of disk and store is restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.ipc import protocol
from spotguard.hooks.save.request import SaveSpec
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.file import FileStore
from tests.fakes.mortal import Life, Mortal
from tests.fakes.noticed import Heard
from tests.fakes.store import Killed
from tests.fakes.training import different, guarded, restored, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore
from tests.hooks.save.local_copy.stages import settled

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.soak)]
)
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
        stager = guard._checkpointer._copies.stager
        assert stager is not None
        stager.stage.files = stager.writer.uploads.store = Mortal(stager.stage.files, life)  # type: ignore[assignment]
        step_on(guard, job, 0, 1)
        guard._saver.background()
        assert heard.wait(protocol.Committed).step == 2
        step_on(guard, job, 2)
        settled(guard)
        life.ends(calls, after=after)
        try:
            # On this thread, for a death would end the saving one without a word.
            guard._checkpointer.save(
                guard._state,
                SaveSpec(3, parked=True),
                "background",
                CancelScope(SystemClock()),
                None,
                lambda: None,
            )
        except Killed:
            return True
        finally:
            guard._saver.ready = False  # a dead process records no end
    return False
