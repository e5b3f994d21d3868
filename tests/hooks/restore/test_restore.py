"""Restoring: the newest whole checkpoint or the next older one, into what fits, and never a mix."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.format.codec import decode_manifest, encode_manifest
from spotguard.providers.errors import CheckpointError, StateError, UsageError
from tests.fakes.training import Job, bits, different, guarded, saved_each_step, small, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

TOTAL = 4


def saved(
    store: WatchedStore | Path, *, make: Callable[[], Job] = small, run_id: str = "run"
) -> list[dict[str, int]]:
    return saved_each_step(store, TOTAL, make=make, run_id=run_id)


def damage(store: WatchedStore, step: int) -> None:
    """Flip one bit in the middle of a checkpoint's tensors."""
    key = next(k for k in store.objects if f"/{step:09d}-" in k and k.endswith(".safetensors"))
    store.corrupt(key, len(store.objects[key]) - 3)


# --- which -----------------------------------------------------------------------------------------------


def test_the_newest_is_taken() -> None:
    """And a fresh store gives step 0."""
    store = WatchedStore()
    with guarded(store, small().values) as guard:
        assert guard.restore() == 0
    states = saved(store)
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == TOTAL
    assert different(job.bits(), states[TOTAL]) == []


def test_a_step_may_be_chosen() -> None:
    """`restore(step=…)`; what is saved from there on is newer than all that was left."""
    store = WatchedStore()
    states = saved(store)
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore(step=3) == 3
        assert different(job.bits(), states[3]) == []
        guard.save()
    with guarded(store, small().values) as guard:
        assert guard.restore() == 3


def test_going_back_takes_away_what_was_made_since() -> None:
    """State that an optimizer had not made yet at that step is not there any more."""
    store, job = WatchedStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        before = job.bits()
        guard.save()
        step_on(guard, job, 0, 1)
        assert guard.restore(step=0) == 0
        assert different(job.bits(), before) == []


def test_a_step_that_is_not_there_is_named() -> None:
    """With the command that shows which there are; nothing was changed."""
    store = WatchedStore()
    saved(store)
    job = small()
    before = job.bits()
    with guarded(store, job.values) as guard, pytest.raises(CheckpointError, match=r"step 77 .*spotguard ls"):
        guard.restore(step=77)
    assert job.bits() == before


def test_another_run_may_be_the_start() -> None:
    """Its state is taken, its checkpoints stay its own."""
    store = WatchedStore()
    states = saved(store, run_id="first")
    job = small()
    with guarded(store, job.values, "second") as guard:
        assert guard.restore(run_id="first") == TOTAL
        assert different(job.bits(), states[TOTAL]) == []
        assert guard._position().checkpoint_step == -1, "nothing of its own is committed yet"
        guard.save()
    assert [
        key for key in store.objects if key.startswith("second/checkpoints/") and key.endswith("COMMIT.json")
    ]
    with guarded(store, small().values, "first") as guard:
        assert guard.restore() == TOTAL


# --- damage ----------------------------------------------------------------------------------------------


def test_a_damaged_chunk_sends_to_the_next_older_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Loaded over everything that was already read: not a bit of the damaged one stays."""
    store = WatchedStore()
    states = saved(store)
    damage(store, 4)
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 3
    assert different(job.bits(), states[3]) == []
    assert "damaged" in caplog.text


def test_a_missing_object_sends_to_the_next_older_checkpoint() -> None:
    """As does one that vanishes between the listing and the reading."""
    store = WatchedStore()
    states = saved(store)
    key = next(k for k in store.objects if "/000000004-" in k and k.endswith(".safetensors"))
    del store.objects[key]
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 3
    assert different(job.bits(), states[3]) == []


def test_a_save_without_its_manifest_is_never_picked_up() -> None:
    """Objects and even a marker alone are nothing."""
    store = WatchedStore()
    states = saved(store)
    for key in [k for k in store.objects if "/000000004-" in k and "-of-" in k and k.endswith(".json")]:
        del store.objects[key]
    job = small()
    with guarded(store, job.values) as guard:
        assert guard.restore() == 3
    assert different(job.bits(), states[3]) == []


def test_training_does_not_start_when_all_checkpoints_are_damaged() -> None:
    """An error that says so and a way out; the loop has no step to begin with."""
    store = WatchedStore()
    saved(store)
    for step in (2, 3, 4):
        damage(store, step)
    with (
        guarded(store, small().values) as guard,
        pytest.raises(
            CheckpointError, match="Training was not started; rerun the command once with --begin-anew"
        ) as caught,
    ):
        guard.restore()
    assert all(f"{step:09d}-" in str(caught.value) for step in (2, 3, 4))
    with pytest.raises(Exception, match=r"call guard\.restore\(\) again"):
        guard.step()


# --- what does not fit -----------------------------------------------------------------------------------


def wider() -> Job:
    return small(width=17)


def halved() -> Job:
    job = small()
    job.values["model"].to(torch.bfloat16)
    return job


def deeper() -> Job:
    job = small()
    job.values["model"].append(nn.Linear(4, 4))
    return job


def shallower() -> Job:
    job = small()
    del job.values["model"][4]
    job.values["optimizer"] = torch.optim.AdamW(job.values["model"].parameters(), lr=0.01)
    return job


def other_optimizer() -> Job:
    return small(lambda params: torch.optim.SGD(params, lr=0.01))


def fewer_groups() -> Job:
    job = small()
    job.values["optimizer"] = torch.optim.AdamW(list(job.values["model"].parameters())[:-1], lr=0.01)
    return job


def more() -> Job:
    job = small()
    job.values["ema"] = nn.Linear(2, 2)
    return job


def other_kind() -> Job:
    job = small()
    job.values["notes"] = torch.zeros(3)
    return job


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (wider, r"model\.0\.weight is \(17, 8\) .* here and \(16, 8\)"),
        (halved, r"model\.0\.weight is .*bfloat16 here and .*float32"),
        (deeper, r"model does not fit .*missing there: 5\.bias, 5\.weight"),
        (shallower, r"model does not fit .*unknown here: 4\.bias, 4\.weight"),
        (other_optimizer, "optimizer is SGD here and AdamW"),
        (fewer_groups, r"optimizer has parameter groups of \[5\] here and \[6\]"),
        (more, r"no 'ema' \(it holds .*model.*guard\.restore\(missing=\('ema',\)\)"),
        (other_kind, "notes is a tensor here and a dict"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_changed(
    make: Callable[[], Job], said: str
) -> None:
    """One line with the item, what is here and what is there; every bit of the fresh objects stands."""
    store = WatchedStore()
    saved(store)
    job = make()
    before = bits(job.values)
    with guarded(store, job.values) as guard, pytest.raises(StateError, match=said) as refused:
        guard.restore()
    assert different(bits(job.values), before) == []
    assert "\n" not in str(refused.value)


def test_a_newly_registered_value_may_be_missing(caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its value, and the rest is the checkpoint's; the next save has it, and no restore may lack it then."""
    store = WatchedStore()
    saved(store)
    job = more()
    nn.init.constant_(job.values["ema"].weight, 7.0)
    with guarded(store, job.values) as guard:
        assert guard.restore(missing=["ema"]) == TOTAL
        assert "the checkpoint has no 'ema': it keeps the value that it has now" in caplog.text
        step_on(guard, job, TOTAL)
        guard.save()
    caplog.clear()
    after = bits(job.values)
    again = more()
    with guarded(store, again.values) as guard:
        assert guard.restore(missing="ema") == TOTAL + 1
        assert "no 'ema'" not in caplog.text
    assert different(bits(again.values), after) == []


@pytest.mark.parametrize("names", ["emma", ("ema", "emma"), ("rng",)])
def test_a_name_that_may_be_missing_is_a_registered_one(names: str | tuple[str, ...]) -> None:
    store = WatchedStore()
    saved(store)
    job = more()
    before = bits(job.values)
    with (
        guarded(store, job.values) as guard,
        pytest.raises(
            UsageError, match=r"missing=.*: nothing is registered as '(emma|rng)'; expected one of .*ema"
        ),
    ):
        guard.restore(missing=names)
    assert different(bits(job.values), before) == []


def test_a_saved_value_that_is_not_registered_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Something saved and not registered now is not restored: a warning, for it may have been forgotten."""
    store = WatchedStore()
    saved(store, make=more)
    with guarded(store, small().values) as guard:
        assert guard.restore() == TOTAL
    assert "also holds ema" in caplog.text


def test_an_object_that_refuses_its_state_is_named() -> None:
    """Its own `load_state_dict` decides; the error says whose, and what to do."""

    class Strict:
        def __init__(self, words: dict[str, Any]) -> None:
            self.words = words

        def state_dict(self) -> dict[str, Any]:
            return self.words

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("position")

    store = WatchedStore()

    def make() -> Job:
        job = small()
        job.values["strict"] = Strict({"a": 1})
        return job

    saved(store, make=make)
    with (
        guarded(store, make().values) as guard,
        pytest.raises(StateError, match=r"strict: Strict\.load_state_dict refuses .*KeyError"),
    ):
        guard.restore()


def test_another_thread_count_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Restored all the same: the last bits may differ from here on, and the log says why."""
    store = WatchedStore()
    saved(store)
    torch.set_num_threads(2)
    with guarded(store, small().values) as guard, caplog.at_level(logging.WARNING):
        assert guard.restore() == TOTAL
    assert "saved with CPU threads 1, restored with 2" in caplog.text


def test_going_on_equals_a_run_without_us(folder: Path) -> None:
    """Four lives of one step each end where an uninterrupted run ends."""
    expected = trajectory(small, TOTAL)
    for life in range(TOTAL):
        job = small()
        with guarded(folder, job.values) as guard:
            assert guard.restore() == life
            assert different(job.bits(), expected[life]) == []
            step_on(guard, job, life)
            guard.save()
    assert different(job.bits(), expected[TOTAL]) == []


def test_a_replay_buffer_is_no_part_of_the_manifest(folder: Path) -> None:
    """A large numpy array in a dict is saved as a tensor's bytes are, and counted as they are."""

    def make() -> Job:
        job = small()
        job.values["replay"] = {"seen": np.zeros((0, 8)), "at": 0}
        return job

    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        job.step(0)
        job.values["replay"]["seen"] = np.random.default_rng(0).random((4096, 8))
        guard.step()
        assert guard.save().nbytes > 4096 * 8 * 8
    manifest = next(folder.rglob("00000-of-00001.json"))
    assert manifest.stat().st_size < 64 * 2**10
    fresh = make()
    with guarded(folder, fresh.values) as guard:
        assert guard.restore() == 1
    assert different(fresh.bits(), job.bits()) == []
    fresh.values["replay"]["seen"][0] = 1.0


# --- levels ----------------------------------------------------------------------------------------------


def lower(store: WatchedStore, step: int) -> None:
    """Say of a checkpoint that it lacks the moments."""
    for key, data in list(store.objects.items()):
        if f"/{step:09d}-" in key and key.endswith("COMMIT.json"):
            del store.objects[key]
        elif f"/{step:09d}-" in key and key.endswith(".json"):
            store.objects[key] = encode_manifest(replace(decode_manifest(data, key), level="weights"))


def saved_at(store: WatchedStore, *steps: int) -> None:
    """A run with checkpoints of these steps, most of which train nothing."""
    job = small()
    with guarded(store, job.values) as guard:
        guard.restore()
        for number in range(1, max(steps) + 1):
            guard.step()
            if number in steps:
                guard.save()


@pytest.mark.parametrize(
    ("full", "light", "taken"),
    [
        ((5,), (), 5),
        ((5,), (6,), 5),
        ((5,), (1004,), 5),
        ((5,), (1005,), 1005),
        ((), (3,), 3),
        ((5, 7), (6,), 7),
    ],
)
def test_a_lower_level_is_taken_where_it_is_worth_more(
    full: tuple[int, ...], light: tuple[int, ...], taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand steps are what the moments are worth; and with nothing else it is all there is. Loud either way."""
    store = WatchedStore()
    saved_at(store, *full, *light)
    for step in light:
        lower(store, step)
    with guarded(store, small().values) as guard:
        assert guard.restore() == taken
    assert ("without the optimizer's moments" in caplog.text) is bool(
        light and max(light) > max(full, default=0)
    )


@pytest.mark.parametrize(
    ("full", "broken", "light", "taken"),
    [
        ((5,), (5,), (6,), 6),
        ((5,), (5,), (1005,), 1005),
        ((3, 900), (900,), (1003,), 1003),
        ((4, 900), (900,), (1003,), 4),
        ((5,), (5,), (6, 7), 7),
    ],
)
def test_a_lower_level_outlives_the_full_one_that_it_was_held_against(
    full: tuple[int, ...], broken: tuple[int, ...], light: tuple[int, ...], taken: int
) -> None:
    """A full checkpoint that turns out damaged is none: what is newer is held against the next older one."""
    store = WatchedStore()
    saved_at(store, *full, *light)
    for step in light:
        lower(store, step)
    for step in broken:
        damage(store, step)
    with guarded(store, small().values) as guard:
        assert guard.restore() == taken


def test_a_lower_level_that_is_asked_for_is_taken() -> None:
    """By its step."""
    store = WatchedStore()
    saved_at(store, 5, 6)
    lower(store, 6)
    with guarded(store, small().values) as guard:
        assert guard.restore(step=6) == 6


def test_state_that_cannot_be_copied_after_a_restore_stops_no_other_thread() -> None:
    """The boundary that `restore` began has an end all the same: another thread's step would wait for it without one."""

    class Fickle:
        broken = False

        def state_dict(self) -> dict[str, int]:
            if self.broken:
                raise RuntimeError("not now")
            return {"at": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.broken = True

    store = WatchedStore()
    saved_job, job = small(), small()
    with guarded(store, {**saved_job.values, "fickle": Fickle()}) as guard:
        guard.restore()
        step_on(guard, saved_job, 0)
        guard.save()
    with guarded(store, {**job.values, "fickle": Fickle()}) as guard:
        with pytest.raises(RuntimeError, match="not now"):
            guard.restore()
        assert guard._gate.place.bounding is None
        with pytest.raises(UsageError, match=r"before guard\.restore"):
            guard.step()
