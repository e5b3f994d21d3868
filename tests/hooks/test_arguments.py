"""What a script may say wrongly: one line with the value and the way out, before anything is done."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotguard.hooks.control.ending import sigterm
from spotguard.hooks.register import register
from spotguard.providers.errors import CheckpointError, StateError, UsageError
from tests.fakes.training import bits, different, guarded, saved_each_step, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL = 3


def saved(run_id: str = "run") -> WatchedStore:
    """A store with a checkpoint after each step of a run."""
    store = WatchedStore()
    saved_each_step(store, TOTAL, run_id=run_id)
    return store


# --- register ------------------------------------------------------------------------------------------------


def test_a_store_that_is_named_is_told_where_it_stands(folder: Path) -> None:
    """Nothing is claimed there."""
    with pytest.raises(
        UsageError, match=f"pass the store first and without a name, as in register.'{folder.as_uri()}'"
    ):
        register(store=folder.as_uri(), **small().values)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (small().values["model"], "the store is given as a Sequential, .* give each value a name"),
        (b"file:///mnt/x", "the store is given as a bytes"),
    ],
    ids=["model", "bytes"],
)
def test_a_store_that_is_no_text_is_named(store: Any, said: str) -> None:
    """The model without its name, for one."""
    with pytest.raises(UsageError, match=said) as raised:
        register(store, **small().values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("run_id", [5, "a/b", "../a", b"a"])
def test_a_run_id_that_is_none_is_named(run_id: Any, folder: Path) -> None:
    """Whatever its type."""
    with pytest.raises(UsageError, match="cannot be the name of a directory: use up to 64 letters"):
        register(folder.as_uri(), run_id=run_id, **small().values)
    assert list(folder.iterdir()) == []


def test_a_store_in_a_file_says_so(folder: Path) -> None:
    """A file where a folder must be made, on the way or at its end."""
    (folder / "file").write_text("mine")
    for path in ("file", "file/deeper/x"):
        with pytest.raises(
            Exception, match="something in this path is a file: name a directory, or another store"
        ):
            register((folder / path).as_uri(), run_id="r", **small().values)
    assert (folder / "file").read_text() == "mine"
    sigterm.let_go()


# --- restore -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["2", 2.0, -1, True, None.__class__])
def test_a_step_that_is_none_is_named(step: Any) -> None:
    """And the guard is as it was: the next word counts."""
    job = small()
    with guarded(saved(), job.values) as guard:
        before = job.bits()
        with pytest.raises(UsageError, match=r"step=.* is not a number of completed steps; .* step=1200"):
            guard.restore(step=step)
        assert different(job.bits(), before) == []
        assert guard.restore(step=np.int64(2)) == 2  # type: ignore[arg-type]


def test_a_run_that_is_not_there_is_no_fresh_start() -> None:
    """A name that is spelt wrong would train from nothing, and nobody would see it."""
    store, job = saved("first"), small()
    before = job.bits()
    with guarded(store, job.values, "second") as guard:
        with pytest.raises(CheckpointError, match=r"run frist has no complete checkpoint in .*spotguard ls"):
            guard.restore(run_id="frist")
        with pytest.raises(UsageError, match=r"run id '\.\./first' cannot be the name of a directory"):
            guard.restore(run_id="../first")
        with pytest.raises(UsageError, match=r"guard\.step\(\) was called before guard\.restore\(\)"):
            guard.step()
        assert different(job.bits(), before) == []
        assert guard.restore(run_id="second") == 0, "its own name is as good as none"
        assert guard.restore(run_id="first") == TOTAL


def test_a_restart_goes_on_from_its_own_steps(caplog: pytest.LogCaptureFixture) -> None:
    """With `restore() or restore(run_id=…)`; who says only the second begins there again, and is told so."""
    caplog.set_level(logging.WARNING, "spotguard")
    store = saved("first")
    for life in range(2):
        job = small()
        with guarded(store, job.values, "second") as guard:
            done = guard.restore() or guard.restore(run_id="first")
            assert done == TOTAL + life
            step_on(guard, job, done)
            guard.save()
    assert caplog.text == ""
    with guarded(store, small().values, "second") as guard:
        assert guard.restore(run_id="first") == TOTAL
    assert "restoring run first: the own checkpoint of run second at step 5 is ignored" in caplog.text
    assert len(caplog.records) == 1


def test_a_library_that_is_missing_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved generators hold an array of numpy's. Nothing older is taken, and nothing is changed."""
    store, job = saved(), small()
    with guarded(store, job.values) as guard:
        before = bits(job.values)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "numpy", None)
            with pytest.raises(
                StateError, match=r"numpy\.ndarray, but numpy is not installed here: install it"
            ):
                guard.restore()
        assert different(bits(job.values), before) == []
        assert guard.restore() == TOTAL
    assert different(job.bits(), trajectory(small, TOTAL)[TOTAL]) == []


# --- save ----------------------------------------------------------------------------------------------------


def test_in_a_loop_over_steps_a_save_comes_first_in_a_turn() -> None:
    """Behind the training of its turn it is in the middle of a step, and the error says where to put it."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        found = []
        for step in guard.steps(TOTAL):
            if step:
                found.append(guard.save().step)
            job.step(step)
            with pytest.raises(UsageError, match=r"or first in the body of a loop over guard\.steps\(\)"):
                guard.save()
        assert found == [1, 2]
