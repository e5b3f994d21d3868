"""Restoring what somebody else wrote, or what refuses in its middle: an older one, a name, or nobody trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, find_whole
from spotguard.providers.errors import StateError
from tests.fakes.commit import put_manifest
from tests.fakes.training import Job, different, guarded, restored, small
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

#: What is done to the state's trees in a manifest.
Change = Callable[[dict[str, Any]], Any]


def saved(store: WatchedStore, make: Callable[[], Job] = small) -> list[dict[str, int]]:
    """A run with a checkpoint after each of its two steps; the bits of each."""
    job = make()
    states = []
    with guarded(store, job.values) as guard:
        guard.restore()
        states.append(job.bits())
        for number in range(2):
            job.step(number)
            guard.step()
            guard.save()
            states.append(job.bits())
    return states


def dict_of(whole: WholeCheckpoint) -> dict[str, Any]:
    """The trees of its manifest, to be changed in place."""
    state = whole.manifests[0].state
    assert isinstance(state, dict)
    return state


def _put(part: str, key: str, value: Any) -> Change:
    return lambda state: state[part].update({key: value})


def _drop(part: str, key: str) -> Change:
    return lambda state: state[part].pop(key)


MALFORMED: dict[str, Change] = {
    "no groups": _put("optimizer", "param_groups", 3),
    "params a number": lambda state: state["optimizer"]["param_groups"][0].update(params=7),
    "params of numbers": lambda state: state["optimizer"]["param_groups"][0].update(params=[7]),
    "no state": _drop("optimizer", "state"),
    "state a list": _put("optimizer", "state", []),
    "no on_host": _drop("optimizer", "on_host"),
    "on_host of numbers": _put("optimizer", "on_host", [1]),
    "other no pairs": lambda state: state["optimizer"].update(other=[1]),
    "other by a list": lambda state: state["optimizer"].update(other=[{"$": "tuple", "items": [[], 1]}]),
    "a module that is none": lambda state: state.update(model=3),
    "a moment a number": lambda state: state["optimizer"]["state"]["model/0.weight"].update(exp_avg=0.5),
    "a moment another's": lambda state: state["optimizer"]["state"]["model/0.weight"].update(
        exp_avg={"$": "tensor", "name": "model/0.weight"}
    ),
    "a tensor a weight": lambda state: state["notes"].update(
        losses={"$": "tensor", "name": "model/0.weight"}
    ),
    "a number a weight": lambda state: state["optimizer"]["param_groups"][0].update(
        lr={"$": "tensor", "name": "model/0.weight"}
    ),
    "a class that is none": _put("optimizer", "class", 3),
    "python's out of range": lambda state: state["rng"]["python"]["items"][1]["items"].__setitem__(0, 2**70),
    "a weight a number": lambda state: state["model"].update({next(iter(state["model"])): 3}),
    "generators a list": lambda state: state.update(rng=[]),
    "python's a number": lambda state: state["rng"].update(python=3),
    "numpy's a number": lambda state: state["rng"].update(numpy=3),
    "torch's a number": lambda state: state["rng"].update(torch=3),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_manifest_sends_to_the_next_older_checkpoint(kind: str) -> None:
    """Noticed before a byte is read, whatever it is; never an error of Python's."""
    store = WatchedStore()
    states = saved(store)
    whole = find_whole(store, "run")
    assert whole is not None
    MALFORMED[kind](dict_of(whole))
    put_manifest(store, whole.manifests[0])
    step, state = restored(store, small)
    assert step < whole.name.step
    assert different(state, states[step]) == []


MISFITS: dict[str, Change] = {
    "another optimizer": _put("optimizer", "class", "Lion"),
    "a name that is gone": lambda state: state.pop("scheduler"),
    "moments of a stranger": lambda state: state["optimizer"]["state"].update({"model/ghost": {"step": 1}}),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_checkpoint_of_another_script_changes_nothing(kind: str) -> None:
    """It does not fit, says who, and no tensor was touched."""
    store = WatchedStore()
    saved(store)
    whole = find_whole(store, "run")
    assert whole is not None
    MISFITS[kind](dict_of(whole))
    put_manifest(store, whole.manifests[0])
    job = small()
    before = job.bits()
    with guarded(store, job.values) as guard:
        with pytest.raises(StateError, match="checkpoint"):
            guard.restore()
        assert different(job.bits(), before) == []
        assert guard._state.poisoned == ""


class Moody:
    """Refuses what it saved itself, while it is told to."""

    moody = False

    def state_dict(self) -> dict[str, Any]:
        return {"on": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.moody:
            raise RuntimeError("not today")


def test_after_a_restore_that_ended_in_its_middle_nobody_trains_or_saves() -> None:
    """The tensors are in already: neither a step nor a save takes the mix for a state, until a restore succeeds."""
    store = WatchedStore()

    def make() -> Job:
        job = small()
        job.values["moody"] = Moody()
        return job

    states = saved(store, make)
    job = make()
    with guarded(store, job.values) as guard:
        done = guard.restore()
        job.values["moody"].moody = True
        with pytest.raises(
            StateError,
            match=r"moody: Moody\.load_state_dict refuses .*tensors already hold the values of the checkpoint",
        ):
            guard.restore()
        assert "mix" in guard._state.poisoned
        with pytest.raises(StateError, match="mix of two states"):
            guard.step()
        with pytest.raises(StateError, match="mix of two states"):
            guard._state.collect()
        job.values["moody"].moody = False
        assert guard.restore() == done
        assert guard._state.poisoned == ""
        guard._state.collect()
        assert different(job.bits(), states[done]) == []


@pytest.mark.parametrize("other", ["shape", "dtype", "kind"])
def test_a_wrong_registration_is_no_damage(other: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each checkpoint is sound, so no older one is taken, nothing is called damaged, and nothing was changed."""
    store = WatchedStore()
    saved(store)
    job = small(width=24) if other == "shape" else small()
    if other == "dtype":
        job.values["model"].to(torch.bfloat16)
    elif other == "kind":
        job.values["scheduler"] = Moody()
        job.values["scheduler"].moody = True
    before = job.bits()
    with guarded(store, job.values) as guard:
        with pytest.raises(StateError, match=r"checkpoint|refuses"):
            guard.restore()
        if other != "kind":
            assert guard._state.poisoned == ""
            assert different(job.bits(), before) == []
    assert "damaged" not in caplog.text


def test_an_object_that_refuses_the_newest_and_takes_an_older_one_has_found_damage() -> None:
    """What it refuses, it saved itself: the older checkpoint is restored, whole."""
    store = WatchedStore()

    def make() -> Job:
        job = small()
        job.values["moody"] = Moody()
        return job

    class Strict(Moody):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state["on"] != 1:
                raise OverflowError("out of range")

    states = saved(store, make)
    whole = find_whole(store, "run")
    assert whole is not None
    dict_of(whole)["moody"] = {"on": 7}
    put_manifest(store, whole.manifests[0])
    job = make()
    job.values["moody"] = Strict()
    with guarded(store, job.values) as guard:
        done = guard.restore()
        assert guard._state.poisoned == ""
    assert done == whole.name.step - 1
    assert different(job.bits(), states[done]) == []
