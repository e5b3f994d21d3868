"""The guard as a training loop holds it: a notice at any instant, and what the loop is told."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.guard import Guard
from spotguard.hooks.register import register
from spotguard.providers.errors import StateError, UsageError
from spotguard.providers.stores.file import FileStore
from spotguard.testing import preempt
from tests.fakes.training import (
    PATIENCE,
    Job,
    different,
    finished,
    guarded,
    restored,
    small,
    step_on,
    train,
    trajectory,
    wait_shut,
)
from tests.fakes.watched_store import WatchedStore
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

TOTAL = 5
CLEAN = ("loading", "forward", "backward", "evaluating", "entering")
DIRTY = ("inside", "stepped", "ending", "copying")


class Copied:
    """Something with a state, whose asking for it is an instant of the step."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self.asked = asked

    def state_dict(self) -> dict[str, Any]:
        self.asked()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing in it."""


class OwnOptimizer:
    """An optimizer that torch's hooks do not reach."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.1}]

    def step(self) -> None:
        """It has nothing to do here: that it is registered is the point."""

    def state_dict(self) -> dict[str, Any]:
        return {"param_groups": self.param_groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.param_groups = state["param_groups"]


def with_own() -> Job:
    job = small()
    job.values["own"] = OwnOptimizer()
    return job


MAKES: dict[str, Callable[[], Job]] = {
    "adamw": small,
    "fused": lambda: small(lambda params: torch.optim.AdamW(params, lr=0.01, fused=True)),
    "momentum": lambda: small(lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9)),
    "closure": lambda: small(lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3)),
    "boundary": with_own,
}
_paths: dict[str, list[dict[str, int]]] = {}


def path_of(kind: str) -> list[dict[str, int]]:
    if kind not in _paths:
        _paths[kind] = trajectory(MAKES[kind], TOTAL)
    return _paths[kind]


#: A closure leaves nothing between backward and step; a boundary-only job copies when somebody wants it.
ABSENT = {("closure", "evaluating"), ("boundary", "copying")}
CASES = [(kind, at) for kind in MAKES for at in (*CLEAN, *DIRTY) if (kind, at) not in ABSENT]
#: Their instants are those of AdamW.
LIKE_ADAMW = ("fused", "momentum")
FAST = [(kind, at) for kind, at in CASES if kind not in LIKE_ADAMW or at == "inside"]


@pytest.mark.parametrize(
    ("kind", "instant"), few_fast([*FAST, *(case for case in CASES if case not in FAST)], len(FAST))
)
def test_a_notice_at_every_instant_ends_at_one_boundary(kind: str, instant: str, folder: Path) -> None:
    """The step in whose clean part it comes stands as it was; past that, the step is completed first. Every
    bit is that boundary's, and training goes on from it to the same end."""
    expected = path_of(kind)
    # LBFGS writes two zeros into its empty state before it calls its closure: they stand for what is not there.
    for number in (1 if kind == "closure" else 0, 3):
        store, job = folder / f"store-{number}", MAKES[kind]()
        job.values["copied"] = Copied(lambda job=job, number=number: job.at("copying", number))  # type: ignore[misc]
        with guarded(store, job.values) as guard:
            job.values["optimizer"].register_step_pre_hook(
                lambda *_, job=job, number=number: job.at("inside", number)
            )
            told: list[str] = []

            def at(
                which: str, step: int, told: list[str] = told, number: int = number, guard: Guard = guard
            ) -> None:
                if which == instant and step == number and guard._gate.place.completed == number and not told:
                    told.append(which)
                    preempt(guard)
                    wait_shut(guard)

            done = guard.restore()
            job.at = at
            assert _train(guard, job, done) == -1, "the notice had to end the training"
            assert told == [instant]

        def again(kind: str = kind) -> Job:
            job = MAKES[kind]()
            job.values["copied"] = Copied(lambda: None)
            return job

        saved, state = restored(store, again)
        before = "inside" if kind == "closure" else ""  # its pre-hook runs before the closure
        clean = kind != "boundary" and (instant in CLEAN or instant == before)
        assert saved == (number if clean else number + 1)
        assert different(state, expected[saved]) == []
        begun, end = finished(store, again, TOTAL)
        assert begun == saved
        assert different(end, expected[TOTAL]) == []


def _train(guard: Guard, job: Job, done: int) -> int:
    try:
        step_on(guard, job, *range(done, TOTAL))
    except Preempted:
        return -1
    return TOTAL


@pytest.mark.parametrize("kind", MAKES)
def test_guarding_changes_nothing(kind: str, folder: Path) -> None:
    """With a guard, a background save at every step and one by hand, training is the same to the bit."""
    expected, job = path_of(kind), MAKES[kind]()
    with guarded(folder, job.values) as guard:
        assert job.bits() == expected[0], "register changed something"
        assert guard.restore() == 0
        for number in range(TOTAL):
            assert different(job.bits(), expected[number]) == []
            job.step(number)
            guard.step()
            guard._saver.background()
            if number == 2:
                guard.save()
        assert different(job.bits(), expected[TOTAL]) == []


def test_state_that_is_made_late_is_not_made_early(folder: Path) -> None:
    """An optimizer that has not stepped has no state: not after register, not after a save."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        assert guard.save().step == 0
        assert dict(job.values["optimizer"].state) == {}
    fresh = small()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 0
        assert dict(fresh.values["optimizer"].state) == {}


# --- how training ends ---------------------------------------------------------------------------------------


def test_preempted_is_an_exit_with_code_75(folder: Path) -> None:
    """From `guard.step()` where the state was dirty, from `optimizer.step()` where it stood; `finally` runs."""
    for instant, where in (("ending", "guard"), ("forward", "optimizer")):
        job, cleaned, before = small(), [], []
        store = folder / where
        with guarded(store, job.values) as guard:
            guard.restore()

            def at(which: str, step: int, guard: Guard = guard, instant: str = instant) -> None:
                if which == instant:
                    preempt(guard)
                    wait_shut(guard)

            job.at = at
            with pytest.raises(SystemExit) as ended:  # noqa: PT012 - where it comes from is the point
                try:
                    job.step(0)
                    before.append("guard")
                    guard.step()
                finally:
                    cleaned.append(True)
            assert isinstance(ended.value, Preempted)
            assert ended.value.code == 75
            assert cleaned == [True]
            assert before == (["guard"] if where == "guard" else [])
            assert restored_step(store) == (1 if where == "guard" else 0)


def restored_step(store: Path) -> int:
    from spotguard.hooks.checkpoint.catalog import find_whole

    whole = find_whole(FileStore(store), "run")
    assert whole is not None
    return whole.name.step


def test_a_stuck_data_loader_loses_no_step() -> None:
    """The main thread never comes back: what it had completed is saved all the same, and it leaves later."""
    store, job, stuck, free = WatchedStore(), small(), threading.Event(), threading.Event()

    def at(which: str, step: int) -> None:
        if which == "loading" and step == 3:
            stuck.set()
            assert free.wait(PATIENCE)

    job.at = at
    with guarded(store, job.values) as guard:
        ended: list[int] = []
        trainer = threading.Thread(target=lambda: ended.append(train(guard, job, TOTAL)), name="trainer")
        trainer.start()
        assert stuck.wait(PATIENCE)
        preempt(guard)
        store.wait_committed()
        assert ended == []
        free.set()
        trainer.join(PATIENCE)
        assert ended == [-1]
    saved, state = restored(store, small)
    assert saved == 3
    assert different(state, path_of("adamw")[3]) == []


def test_a_stuck_boundary_only_job_waits_for_its_boundary() -> None:
    """Where a save has to wait for `guard.step()`, the notice does not tear a step: nothing is written before."""
    store, job = WatchedStore(), with_own()
    with guarded(store, job.values) as guard:
        guard.restore()
        preempt(guard)
        wait_shut(guard)
        job.step(0)
        assert store.kinds() == {"objects": 0, "manifests": 0, "markers": 0}
        with pytest.raises(Preempted):
            guard.step()
        assert store.kinds()["markers"] == 1


# --- by hand -------------------------------------------------------------------------------------------------


def test_save_blocks_until_committed_and_says_what(folder: Path) -> None:
    """A save by hand returns the checkpoint, which restores to the bit."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        saved = guard.save()
        assert (saved.step, saved.nbytes > 0) == (1, True)
        assert Path(saved.url.removeprefix("file://"), "COMMIT.json").exists()
    step, state = restored(folder, small)
    assert step == 1
    assert different(state, path_of("adamw")[1]) == []


@pytest.mark.parametrize("kind", ["adamw", "boundary"])
def test_save_takes_what_is_there_now(kind: str, folder: Path) -> None:
    """Weights that were set by hand after the boundary are meant: the save has them, also in a boundary-only job."""
    job = MAKES[kind]()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        with torch.no_grad():
            job.values["model"][0].weight.data.clamp_(-0.1, 0.1)
        torch.rand(3)
        expected = job.bits()
        assert guard.save().step == 2
        assert guard._state.boundary_only == "" or kind == "boundary"
    step, state = restored(folder, MAKES[kind])
    assert step == 2
    assert different(state, expected) == []


def test_save_in_the_loop_of_a_framework_takes_the_boundary(folder: Path) -> None:
    """Called between two boundaries, as a callback does, it saves what a notice there would."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.loop_owned = True
        guard.restore()
        step_on(guard, job, 0, 1)
        expected = job.bits()
        torch.rand(3)
        assert guard.save().step == 2
    step, state = restored(folder, small)
    assert step == 2
    assert different(state, expected) == []


@pytest.mark.parametrize("kind", ["adamw", "boundary"])
def test_weights_that_are_replaced_behind_the_last_save_are_in_no_checkpoint(
    kind: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a framework's best or averaged ones: a notice finds the last step committed, and so does another save."""
    job = MAKES[kind]()
    with guarded(folder, job.values) as guard:
        guard.loop_owned = True
        guard.restore()
        step_on(guard, job, 0, 1)
        expected = job.bits()
        saved = guard.save()
        with torch.no_grad():
            job.values["model"][0].weight.clamp_(-0.1, 0.1)
        if kind != "boundary":
            assert guard.save() == saved
        preempt(guard, seconds=60)
    assert "[SG" not in caplog.text.replace("[SG406]", "")
    step, state = restored(folder, MAKES[kind])
    assert step == 2
    assert different(state, expected) == []


def test_a_job_that_is_over_before_its_first_checkpoint_leaves_one_by_hand_only(folder: Path) -> None:
    for saves, last in ((False, 0), (True, 3)):
        job = small()
        with guarded(folder, job.values, "by-hand" if saves else "by-itself") as guard:
            guard.restore()
            step_on(guard, job, *range(3))
            if saves:
                guard.save()
        assert restored(folder, small, "by-hand" if saves else "by-itself")[0] == last


def test_nothing_is_pickled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is saved, nor what is restored, asks pickle for anything, or torch's own way of saving."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a pickle")

    for module, names in ((pickle, "dump dumps load loads Pickler Unpickler"), (torch, "save load")):
        for name in names.split():
            monkeypatch.setattr(module, name, refuse)
    job = small()
    job.values["notes"] = {"best": 0.5, "tail": deque([1, 2], 3), "mask": torch.ones(2)}
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0)
        guard.save()
    fresh = small()
    fresh.values["notes"] = {"best": 0.0, "tail": deque(maxlen=3), "mask": torch.zeros(2)}
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 1
    assert different(fresh.bits(), job.bits()) == []


def test_save_in_the_middle_of_a_step_is_refused(folder: Path) -> None:
    """Half a step is nothing to go on from."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        job.step(0)
        with pytest.raises(UsageError, match=r"right after guard\.step"):
            guard.save()
        guard.step()
        assert guard.save().step == 1


# --- wrong use -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["step", "save"])
def test_nothing_before_restore(call: str, folder: Path) -> None:
    """Training on from the wrong place is the worst that could happen: the loop is told to restore first."""
    with (
        guarded(folder, small().values) as guard,
        pytest.raises(UsageError, match=r"restore\(\) once, before the loop"),
    ):
        getattr(guard, call)()
    assert not list(folder.glob("run/checkpoints/*"))


def test_one_guard_in_a_process(folder: Path) -> None:
    """Two would each save half; after `close` another one may come."""
    with guarded(folder, small().values), pytest.raises(UsageError, match="called before in this process"):
        register(folder.as_uri(), run_id="other", **small().values)
    with guarded(folder, small().values, "other") as guard:
        assert guard.restore() == 0


def test_a_closed_guard_saves_nothing_and_says_so(folder: Path) -> None:
    """`save` does not wait for a thread that is gone."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
    with pytest.raises(UsageError, match=r"after guard\.close"):
        guard.save()


def test_a_closed_guard_frees_the_state(folder: Path) -> None:
    """A sweep makes a guard for each trial, in one process: the trial's model must not stay in memory."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job)
        guard.save()
    model = weakref.ref(job.values["model"])
    del job, guard
    gc.collect()
    assert model() is None


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SPOTGUARD_KEEP", "many", "SPOTGUARD_KEEP='many'"),
        ("SPOTGUARD_KEEP", "0", "SPOTGUARD_KEEP='0'"),
        ("SPOTGUARD_EVERY", "often", "'often'"),
        ("SPOTGUARD_EXTRAS_WORTH", "-1", "SPOTGUARD_EXTRAS_WORTH='-1'"),
        ("SPOTGUARD_EXTRAS_WORTH", "9" * 5000, "is not a number of steps from 0 to"),
        ("WORLD_SIZE", "8", "WORLD_SIZE is 8"),
        ("WORLD_SIZE", "x", "WORLD_SIZE is x"),
        ("SPOTGUARD_RUN_ID", "../x", "run id '../x'"),
        ("SPOTGUARD_STORE", "ftp://x/y", "'ftp://x/y'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    variable: str, value: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the value, at register, before anything is written."""
    monkeypatch.setenv("SPOTGUARD_STORE", folder.as_uri())
    monkeypatch.setenv("SPOTGUARD_RUN_ID", "run")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError) as refused:
        register(**small().values)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(folder.iterdir()) == []


def test_nothing_to_save_is_refused(folder: Path) -> None:
    """A guard over nothing is a mistake."""
    with pytest.raises(UsageError, match="nothing to save"):
        register(folder.as_uri())


class Reduced:
    """Of which a copy, by its own word, is a plain number."""

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return int, (7,)


def test_a_value_that_cannot_be_saved_is_refused_at_register(folder: Path) -> None:
    """By its name, its type and a way out; and nothing is claimed in the store."""
    for value, said in (
        (lambda: None, "thing is of type function"),
        ({"f": open}, "thing.f"),
        ({"p": Reduced()}, "thing.p is a tests.hooks.guard.test_guard.Reduced, which cannot be saved"),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2))), "ResumableLoader"),
    ):
        with pytest.raises(StateError) as refused:
            register(folder.as_uri(), run_id="run", **small().values, thing=value)
        assert said in str(refused.value)
    assert list(folder.iterdir()) == []
