"""Everything else that is registered: tensors of every dtype, plain values, generators, and several things at once."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

from spotguard.hooks.checkpoint.format.dtypes import ITEMSIZE
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.state.state import State
from spotguard.providers.errors import StateError
from spotguard.providers.stores.file import FileStore
from tests.fakes.training import (
    Job,
    bits,
    different,
    finished,
    guarded,
    restored,
    seed,
    small,
    step_on,
    trajectory,
)

pytestmark = pytest.mark.torch

TOTAL, STOP = 6, 3

#: More than is copied at each boundary: such a tensor is read where it lies.
LARGE = 8 * 2**20 + 192


def resumed(make: Any, folder: Path, total: int = TOTAL, stop: int = STOP) -> None:
    """Stop in the middle by a save, go on in fresh objects: always the bits of a run without us."""
    expected = trajectory(make, total)
    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(stop))
        assert different(job.bits(), expected[stop]) == []
        guard.save()
    step, state = restored(folder, make)
    assert step == stop
    assert different(state, expected[stop]) == []
    assert different(finished(folder, make, total)[1], expected[total]) == []


# --- bare tensors --------------------------------------------------------------------------------------------


def of_bytes(dtype: torch.dtype, nbytes: int, filled: bool) -> torch.Tensor:
    """A tensor of any dtype with random bits, or none."""
    raw = (
        torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
        if filled
        else torch.zeros(nbytes, dtype=torch.uint8)
    )
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype) if dtype != torch.uint8 else raw


#: How large ones go depends on the size of an element alone.
DTYPES = [name for name in ITEMSIZE if hasattr(torch, name)]
CASES = [(DTYPES, 0), (DTYPES, 240), (["int16"], LARGE), (["complex128"], LARGE)]


@pytest.mark.parametrize(("names", "size"), CASES, ids=["empty", "small", "large-int16", "large-complex128"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_tensor_of_every_dtype_comes_back(names: list[str], size: int, folder: Path) -> None:
    """Every bit of it, in place; as a tensor, in a dict, and as a buffer; turned, too."""
    seed()

    def make(filled: bool) -> dict[str, Any]:
        module, values = nn.Module(), dict[str, Any]()
        for name in names:
            dtype = getattr(torch, name)
            module.register_buffer(f"it_{name}", of_bytes(dtype, size, filled))
            module.register_buffer(f"turned_{name}", of_bytes(dtype, size, filled).view(-1, 5).mT)
            values[f"bare_{name}"] = of_bytes(dtype, size, filled)
        notes = {name: of_bytes(getattr(torch, name), 240, filled) for name in names}
        return {**values, "module": module, "notes": notes}

    values, fresh = make(True), make(False)
    expected = bits(values, rng=False)
    for background in (False, True):
        with guarded(folder, values) as guard:
            guard.restore()
            guard.save()
            if background:
                guard._saver.background()
        with guarded(folder, fresh) as guard:
            assert guard.restore() == 0
        assert bits(fresh, rng=False) == expected
        fresh = make(False)


def test_a_large_tensor_that_changes_every_step_is_saved_whole(folder: Path) -> None:
    """It is read in place; a step that changes it makes the save wait for its boundary."""

    def make() -> Job:
        job = small()
        job.values["large"] = torch.zeros(LARGE // 4)
        inner = job.step

        def step(number: int) -> None:
            inner(number)
            job.values["large"].add_(torch.rand(()))

        job.step = step
        return job

    resumed(make, folder)


# --- plain values --------------------------------------------------------------------------------------------


def test_plain_values_come_back_into_the_same_dict(folder: Path) -> None:
    """Nested, in value and in type, and the dict that the script holds is the one that is filled."""
    notes: dict[Any, Any] = {
        "best": 0.1,
        3: ("a", [None, True, b"x"]),
        "nan": float("nan"),
        "counts": Counter("abca"),
        "queue": deque([1, 2], maxlen=3),
        "order": OrderedDict([("b", 1), ("a", 2)]),
        "deep": {"tensor": torch.rand(3), "array": np.arange(4), "set": {1, 2}},
    }
    expected = bits({"notes": notes}, rng=False)
    with guarded(folder, {"notes": notes}) as guard:
        guard.restore()
        guard.save()
    fresh: dict[Any, Any] = {"best": 9.0, "stale": 1}
    with guarded(folder, {"notes": fresh}) as guard:
        guard.restore()
    assert bits({"notes": fresh}, rng=False) == expected
    assert type(fresh["counts"]) is Counter
    assert fresh["queue"].maxlen == 3
    assert "stale" not in fresh


def test_a_value_that_becomes_unsavable_is_left_out_by_name(folder: Path) -> None:
    """A dict that could be saved at register and cannot now: the save by hand says where."""
    notes: dict[str, Any] = {"fine": 1}
    with guarded(folder, {"notes": notes}) as guard:
        guard.restore()
        notes["odd"] = {"inner": open}
        assert guard.save().left_out == ("notes.odd.inner: builtin_function_or_method",)
        del notes["odd"]
        assert guard.save().left_out == ()


def test_names_that_cannot_be_used(folder: Path) -> None:
    """The generators' name is taken."""
    with pytest.raises(StateError, match="'rng'"), guarded(folder, {"rng": {"a": 1}}):
        pass


# --- generators ----------------------------------------------------------------------------------------------


def test_every_generator_goes_on_with_its_next_number(folder: Path) -> None:
    """Python's, numpy's and torch's, a gauss that was drawn in advance included."""
    seed()
    random.gauss(0, 1)
    np.random.standard_normal()
    torch.randn(1)
    with guarded(folder, {"notes": {}}) as guard:
        guard.restore()
        guard.save()

    def draw() -> list[float]:
        return [
            random.gauss(0, 1),
            random.random(),
            float(np.random.standard_normal()),
            float(torch.randn(())),
        ]

    expected = draw()
    seed(5)
    with guarded(folder, {"notes": {}}) as guard:
        guard.restore()
    assert draw() == expected


# --- several things at once ----------------------------------------------------------------------------------


class Stateful:
    """A sampler, as scripts write them: a position, a generator of its own, an order."""

    def __init__(self, size: int) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.size, self.at = size, 0
        self.order = torch.randperm(size, generator=self.generator)

    def next(self) -> int:
        if self.at == self.size:
            self.at, self.order = 0, torch.randperm(self.size, generator=self.generator)
        self.at += 1
        return int(self.order[self.at - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": self.order, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.order = state["at"], state["order"]
        self.generator.set_state(state["generator"])


def crowded() -> Job:
    """Two networks with an optimizer each, a scaler that skips, an EMA, a sampler, two schedulers, notes, tensors."""
    seed()
    one, two = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    first = torch.optim.AdamW(one.parameters(), lr=0.01)
    second = torch.optim.SGD(two.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    ema = AveragedModel(two, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    values: dict[str, Any] = {
        "one": one,
        "two": two,
        "first": first,
        "second": second,
        "scaler": scaler,
        "ema": ema,
        "sampler": Stateful(4),
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(first, patience=1),
        "swa": SWALR(second, swa_lr=0.05),
        "notes": {"seen": []},
        "running": torch.zeros(3),
    }
    job = Job(values)

    def step(number: int) -> None:
        index = values["sampler"].next()
        first.zero_grad()
        second.zero_grad()
        loss = two(one(torch.randn(5, 6) + index)).square().mean()
        if number in (1, 4):  # an overflow: the scaler skips the step, which is a step all the same
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        if number not in (1, 4):
            values["plateau"].step(float(loss.detach()))
            values["swa"].step()
        ema.update_parameters(two)
        values["notes"]["seen"].append(index)
        values["running"].mul_(0.5).add_(index)

    job.step = step
    return job


@pytest.mark.parametrize("stop", range(6))
def test_everything_at_once_goes_on_bit_for_bit(stop: int, folder: Path) -> None:
    """Also right after a step that the scaler skipped."""
    resumed(crowded, folder, stop=stop)


def test_a_skipped_step_is_a_step(folder: Path) -> None:
    """The scaler called no optimizer: the boundary counts, and what the scaler changed is in its save."""
    expected = trajectory(crowded, 2)
    job = crowded()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        assert guard._gate.place.completed == 2
        assert guard._state.boundary_only == ""
        guard._saver.background()
    step, state = restored(folder, crowded)
    assert step == 2
    assert different(state, expected[2]) == []


# --- what it costs -------------------------------------------------------------------------------------------


def test_costly_copies_are_made_only_when_wanted(caplog: pytest.LogCaptureFixture, folder: Path) -> None:
    """A state that takes long to copy, step after step, makes saves wait for a boundary instead; loudly, once."""

    class Heavy:
        def state_dict(self) -> dict[str, Any]:
            return {"many": [float(n) for n in range(200_000)]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """It is always the same."""

    def make() -> Job:
        job = small()
        job.values["heavy"] = Heavy()
        return job

    job = make()
    with guarded(folder, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(TOTAL))
        assert "copying what changes" in guard._state.boundary_only
        guard._saver.background()
        job.step(TOTAL)
        expected = job.bits()
        guard.step()
    assert caplog.text.count("waits for the next guard.step()") == 1
    step, state = restored(folder, make)
    if step == TOTAL + 1:  # the save was asked for before that boundary, or it ended with the training
        assert different(state, expected) == []


def test_a_module_that_was_replaced_in_a_dict_of_names() -> None:
    """The same value under two names is saved under each: nothing depends on which came first."""
    model = nn.Linear(2, 2)
    state = State({"a": model, "b": model}, lambda frame: None)
    names = sorted(state_tensor.name for state_tensor in state.collect().state_tensors)
    assert {name.partition("/")[0] for name in names} >= {"a", "b"}


def test_a_checkpoint_names_its_step(folder: Path) -> None:
    """The folder of a save says step, attempt and number; two saves never share one."""
    job = small()
    with guarded(folder, job.values) as guard:
        guard.restore()
        guard.save()
        guard.save()
        step_on(guard, job, 0)
        guard.save()
    names = {info.key.split("/")[2] for info in FileStore(folder).list("run/checkpoints/")}
    assert {CheckpointName.parse(name) for name in names} == {
        CheckpointName(1, 0, 0),
        CheckpointName(1, 0, 1),
        CheckpointName(1, 1, 2),
    }
