"""The window is checked, not trusted: what changes between boundaries is noticed, and never saved torn."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from spotguard.hooks.control.ending.sigterm import Preempted
from spotguard.hooks.state.changes.change_detector import ChangeDetector
from spotguard.hooks.state.state import State
from spotguard.testing import preempt
from tests.fakes.clock import ManualClock
from tests.fakes.training import Job, different, guarded, restored, seed, small, step_on, wait_shut
from tests.fakes.watched_store import PATIENCE, WatchedStore, is_object
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

Edit = Callable[[Job], None]


def scale_through_data(job: Job) -> None:
    """An EMA swap as most write it."""
    for param in job.values["model"].parameters():
        param.data.copy_(param.data * 0.5)


def clamp_by_hand(job: Job) -> None:
    with torch.no_grad():
        job.values["model"][0].weight.clamp_(-0.1, 0.1)


def add_by_hand(job: Job) -> None:
    with torch.no_grad():
        job.values["model"][4].bias.add_(1.0)


def replace_data(job: Job) -> None:
    weight = job.values["model"][0].weight
    weight.data = weight.data * 2


def step_fused(job: Job) -> None:
    """A fused kernel of an optimizer that nobody registered."""
    for param in job.values["model"].parameters():
        param.grad = torch.ones_like(param)
    torch.optim.AdamW(job.values["model"].parameters(), lr=0.1, fused=True).step()


def step_foreach(job: Job) -> None:
    for param in job.values["model"].parameters():
        param.grad = torch.ones_like(param)
    torch.optim.SGD(job.values["model"].parameters(), lr=0.1, foreach=True).step()


def move_moments(job: Job) -> None:
    state = job.values["optimizer"].state
    for values in state.values():
        values["exp_avg"] = values["exp_avg"] * 2


def update_ema(job: Job) -> None:
    """A registered EMA that is brought up to date after the boundary it belongs to."""
    job.values["ema"].update_parameters(job.values["model"])


def edit_large(job: Job) -> None:
    job.values["large"][7] += 1


EDITS: list[Edit] = [
    scale_through_data,
    clamp_by_hand,
    add_by_hand,
    replace_data,
    step_fused,
    step_foreach,
    move_moments,
    update_ema,
    edit_large,
]


def make() -> Job:
    """A job with an EMA, and a bare tensor that is too large to be copied at each boundary."""
    job = small()
    job.values["ema"] = AveragedModel(job.values["model"])
    job.values["large"] = torch.zeros(2**21 + 5)
    inner = job.step

    def step(number: int) -> None:
        inner(number)
        if number < 2:
            update_ema(job)

    job.step = step
    return job


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_before_the_notice_waits_for_the_next_boundary(
    edit: Edit, caplog: pytest.LogCaptureFixture
) -> None:
    """What was edited is of no step: nothing of it is written, and the next whole boundary is saved."""
    store, job = WatchedStore(), make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        edit(job)
        preempt(guard)
        wait_shut(guard)
        job.step(2)
        expected = job.bits()
        with pytest.raises(Preempted):
            guard.step()
    assert {key.split("/")[2][:9] for key in store.objects if "/checkpoints/" in key} == {"000000003"}
    assert store.kinds()["manifests"] == store.kinds()["markers"] == 1
    unregistered = edit in (step_fused, step_foreach)  # it is seen to step
    assert (
        "is not registered" if unregistered else "the state changed while spotguard saved step 2"
    ) in caplog.text
    assert_saved(store, 3, expected)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_during_the_save_discards_it(edit: Edit) -> None:
    """The objects of the discarded save are orphans: no manifest, no marker, and the next boundary is saved."""
    store, job = WatchedStore(), make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        store.hold(is_object)
        preempt(guard)
        assert store.reached.wait(100)
        edit(job)
        store.let_go()
        job.step(2)
        expected = job.bits()
        with pytest.raises(Preempted):
            guard.step()
    assert [name[:9] for name in store.manifests()] == ["000000003"]
    assert store.kinds()["markers"] == 1
    assert_saved(store, 3, expected)


# A notice finds each of them, by the same look.
@pytest.mark.parametrize("edit", few_fast(EDITS, 3), ids=lambda edit: edit.__name__)
def test_an_edit_before_a_background_save_delays_it(edit: Edit) -> None:
    """As for a notice, and training goes on."""
    store, job = WatchedStore(), make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        edit(job)
        guard._saver.background()
        wait_shut(guard)
        job.step(2)
        expected = job.bits()
        guard.step()
        store.wait_committed()
    assert_saved(store, 3, expected)


def assert_saved(store: WatchedStore, step: int, expected: dict[str, int]) -> None:
    """Fresh objects restore to exactly these bits (but for a moment's storage, which is its owner's affair)."""
    saved, state = restored(store, make)
    assert saved == step
    assert different(state, expected) == []


def test_swapped_and_back_again_is_as_it_was() -> None:
    """An evaluation with the EMA's weights that ended before the notice changed nothing: the save starts at once."""
    store, job = WatchedStore(), make()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        expected = job.bits()
        kept = [param.data.clone() for param in job.values["model"].parameters()]
        scale_through_data(job)
        for param, before in zip(job.values["model"].parameters(), kept, strict=True):
            param.data.copy_(before)
        preempt(guard)
        store.wait_committed()
        with pytest.raises(Preempted):
            job.step(2)
    assert_saved(store, 2, expected)


def wide() -> Job:
    """More objects than threads that write them, so that a swap can begin and end between two reads."""
    seed()
    params = [nn.Parameter(torch.rand(17 * 2**13)) for _ in range(6)]  # over half an object each
    model = nn.ParameterList(params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = Job({"model": model, "optimizer": optimizer})

    def step(number: int) -> None:
        for param in params:
            param.grad = torch.full_like(param, float(number))
        optimizer.step()

    job.step = step
    return job


def test_a_swap_there_and_back_during_the_save_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read in between is other bytes, though at the end all stands as it stood: it is not kept."""
    store, job, noticed = WatchedStore(), wide(), threading.Event()
    with guarded(store, job.values) as guard:
        inconsistency = guard._state.inconsistency

        def looked() -> str:
            if why := inconsistency():
                noticed.set()
            return why

        monkeypatch.setattr(guard._state, "inconsistency", looked)
        guard._checkpointer._writer.uploads.width.object_bytes = 2**20
        guard.restore()
        step_on(guard, job, 0)
        store.hold(is_object)
        preempt(guard)
        assert store.reached.wait(100)
        kept = [param.data.clone() for param in job.values["model"]]
        scale_through_data(job)
        store.hold(lambda key: key.endswith("0003.safetensors"))  # far enough that the threads read again
        assert noticed.wait(PATIENCE)
        for param, before in zip(job.values["model"], kept, strict=True):
            param.data.copy_(before)
        store.let_go()
        job.step(1)
        expected = job.bits()
        with pytest.raises(Preempted):
            guard.step()
    saved, state = restored(store, wide)
    assert saved == 2
    assert different(state, expected) == []


def test_an_unregistered_optimizer_makes_the_job_boundary_only(caplog: pytest.LogCaptureFixture) -> None:
    """Parameters that move though no hook fired cannot be held still: from then on saves wait, loudly."""
    store, job = WatchedStore(), small()
    model = job.values["model"]
    other = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        model(torch.ones(4, 8)).square().mean().backward()
        other.step()

    job.step = step
    with guarded(store, job.values) as guard, caplog.at_level(logging.WARNING):
        guard.restore()
        step_on(guard, job, 0, 1)
        assert "is not registered" in guard._state.boundary_only
        assert caplog.text.count("waits for the next guard.step()") == 1
        assert guard._position().mode == "boundary"
        preempt(guard)
        wait_shut(guard)
        job.step(2)
        expected = job.bits()
        with pytest.raises(Preempted):
            guard.step()
    saved, state = restored(store, small)
    assert saved == 3
    assert different(state, expected) == []


def test_a_buffer_that_forward_replaces_is_no_edit() -> None:
    """It was copied at the boundary: a save in mid-forward has the boundary's, at once."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)
            self.calls: torch.Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> Any:
            self.calls = self.calls + 1
            return self.linear(x)

    def make_counting() -> Job:
        seed()
        model = Counting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job = Job({"model": model, "optimizer": optimizer})

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(torch.rand(4, 8)).sum().backward()
            job.at("forward", number)
            optimizer.step()

        job.step = step
        return job

    store, job = WatchedStore(), make_counting()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(6))
        expected = copy.deepcopy(job.values["model"].calls)
        job.at = lambda which, number: preempt(guard)
        with pytest.raises(Preempted):
            job.step(6)
    assert expected == 6
    fresh = make_counting()
    with guarded(store, fresh.values) as guard:
        assert guard.restore() == 6
        assert fresh.values["model"].calls == expected


# --- the witness itself --------------------------------------------------------------------------------------


def test_the_witness_says_what_moved() -> None:
    """Nothing for what stands; a few words for each way to move; and what only others own is not the optimizers'."""
    owned, other = torch.zeros(5), torch.zeros(5)
    alias = owned.detach()
    detector = ChangeDetector([owned], [other], [(owned, alias)])
    assert not detector.mark()
    assert detector.inconsistency() == ""
    owned.data[2] = 1
    assert ".data" in detector.inconsistency()
    assert detector.mark()
    other.data[2] = 1
    assert ".data" in detector.inconsistency()
    assert not detector.mark()
    owned.add_(1)
    assert "in place" in detector.inconsistency()
    detector.mark()
    owned.data = owned.data.clone()
    assert "storage" in detector.inconsistency()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (4, 5, 6)])
def test_the_witness_looks_at_every_shape_and_layout(shape: tuple[int, ...]) -> None:
    """Also at views, transposed ones, and none at what holds nothing."""
    base = torch.zeros(shape).mT if len(shape) > 1 else torch.zeros(shape)
    detector = ChangeDetector([base], [], [])
    detector.mark()
    assert detector.inconsistency() == ""
    base.data.fill_(1)
    assert (detector.inconsistency() != "") == (base.numel() > 0)


def test_a_witness_keeps_what_it_looks_at() -> None:
    """Storage that is dropped by everybody else is still ours to look at."""
    tensors = [torch.rand(1000) for _ in range(100)]
    detector = ChangeDetector(tensors, [], [])
    detector.mark()
    for tensor in tensors:
        tensor.data = torch.empty(0)
    assert "replaced" in detector.inconsistency() or detector.inconsistency() == ""


@pytest.mark.parametrize(
    ("stepping", "evaluating", "warned"),
    [
        pytest.param(4.6, 0.0, False, id="a long optimizer step"),
        pytest.param(0.1, 4.5, True, id="evaluation before the boundary"),
        pytest.param(0.1, 0.9, False, id="evaluation of less than a second"),
        pytest.param(9.0, 1.5, False, id="a small part of the step"),
    ],
)
def test_time_between_the_optimizer_and_the_boundary_is_warned_of(
    stepping: float, evaluating: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A notice waits for it. Counted is what comes behind the optimizer's step, not the step itself; said once, at the third."""
    clock = ManualClock()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, clock)
    optimizer.register_step_pre_hook(lambda *_: clock.advance(stepping))
    said = []
    for _ in range(6):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        clock.advance(evaluating)
        state.at_boundary()
        said.append("call guard.step() right after the optimizer" in caplog.text)
    state.close()
    # The first boundary ends no whole step: from the second on three are counted.
    assert said == [warned and turn >= 3 for turn in range(6)]
    assert caplog.text.count("are between") == warned


@pytest.mark.parametrize("slow", ["copies", "a slice of the audit"])
def test_only_what_the_copies_cost_makes_saves_wait_for_boundaries(
    slow: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slice is within a share of its own: of the first boundaries it may take as much as no copy may."""
    clock = ManualClock()
    monkeypatch.setattr("time.thread_time", clock.monotonic)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, clock)
    busy = state.parts[0] if slow == "copies" else state.audit
    monkeypatch.setattr(
        busy, "at_boundary" if slow == "copies" else "turn", lambda *args: clock.advance(0.02)
    )
    for _ in range(6):
        clock.advance(1.0)
        state.at_boundary()
    state.close()
    assert (state.boundary_only != "") == (slow == "copies") == ("copying what changes" in caplog.text)
