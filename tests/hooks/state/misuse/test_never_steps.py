"""A loop that never comes to `guard.step()`, or comes there no more, is told so: once, by name, with the way out."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from spotguard.hooks.commit.cancel_scope import Abandoned, CancelScope
from spotguard.hooks.save.request import SaveRequest
from spotguard.hooks.state.misuse.step_monitor import (
    BETWEEN,
    NEITHER,
    NEVER,
    STOPPED,
    TOP,
    UNSEEN,
    StepMonitor,
)
from spotguard.hooks.state.state import State
from spotguard.providers.errors import CheckpointError, StateError, UsageError
from tests.fakes.clock import ManualClock
from tests.fakes.loops import Pair, said, watched
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No checkpoints by themselves, and after each test nobody looks at optimizers any more."""
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    caplog.set_level(logging.INFO)
    yield
    assert not torch_optimizer._global_optimizer_pre_hooks


def unmarked(pair: Pair, clock: ManualClock, turns: int, seconds: float) -> None:
    """Turns without a boundary."""
    for number in range(turns):
        clock.advance(seconds)
        pair.turn(number)


def test_never_step(caplog: pytest.LogCaptureFixture) -> None:
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        unmarked(pair, clock, 2000, 0.02)
        told = said(caplog)
        position = guard._position()
    (once,) = told
    assert once.endswith(f" optimizer steps without a boundary: {NEVER}")
    assert (position.marked, position.unmarked_steps, position.misuse) == (False, 4000, NEVER)
    assert position.phase != "start"


def by_hand(model: nn.Module) -> None:
    """A step without an optimizer, as in PyTorch's word language model."""
    for each in model.parameters():
        each.data.add_(torch.ones_like(each), alpha=-0.1)


def test_weights_that_are_trained_by_hand_and_no_step() -> None:
    """No hook sees such a step; trained weights must not be saved as those of step 0."""
    model, clock, store = nn.Linear(2, 2), ManualClock(), WatchedStore()
    with watched({"model": model}, clock, store) as guard:
        guard.restore()
        assert guard.save().step == 0  # nothing is trained yet
        by_hand(model)
        assert guard._position().misuse == UNSEEN
        saved = len(store.manifests())
        with pytest.raises(
            UsageError, match=r"trained weights as step 0, because guard\.step\(\) was not called"
        ):
            guard.save()
        assert len(store.manifests()) == saved
        guard.step()
        assert guard._position().misuse == ""
        assert guard.save().step == 1
        by_hand(model)
        assert guard.save().step == 1  # a boundary was marked: what the script changes after it is its own


def test_no_restore(caplog: pytest.LogCaptureFixture) -> None:
    """Neither call: then `restore` is what must come first."""
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        unmarked(pair, clock, 40, 2.0)
        told, position = said(caplog), guard._position()
    assert len(told) == 1
    assert told[0].endswith(NEITHER)
    assert (position.step, position.misuse, position.phase) == (-1, NEITHER, "start")


@pytest.mark.parametrize(("turns", "seconds"), [(9, 3600.0), (1000, 0.029)], ids=["few-steps", "little-time"])
def test_the_later_of_steps_and_seconds_counts(
    turns: int, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Eighteen steps of an hour each are a slow job, and thousands within half a minute a fast one."""
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        unmarked(pair, clock, turns, seconds)
    assert said(caplog) == []


def test_the_boundary_that_comes_after_all(caplog: pytest.LogCaptureFixture) -> None:
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        unmarked(pair, clock, 20, 2.0)
        guard.step()
        position = guard._position()
    assert (position.marked, position.unmarked_steps, position.misuse) == (True, 0, "")
    assert "guard.step() was called, after 40 optimizer steps: saves are possible" in said(
        caplog, logging.INFO
    )


def test_after_a_first_boundary_only_ten_times_the_usual_count_is_remarked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both optimizers step twice a turn: 40 are ten times that."""
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        for _ in range(8):
            unmarked(pair, clock, 2, 1.0)
            guard.step()
        unmarked(pair, clock, 19, 100.0)
        assert said(caplog) == []
        unmarked(pair, clock, 40, 100.0)
        assert said(caplog) == [f"60 optimizer steps without a boundary: {STOPPED}"]
        assert guard._position().misuse == STOPPED
        guard.step()
        assert guard._position().misuse == ""


def test_going_back_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        pair.turn()
        guard.step()
        guard.save()
        unmarked(pair, clock, 10, 20.0)
        guard.restore()
        unmarked(pair, clock, 9, 20.0)
        assert said(caplog) == []
        unmarked(pair, clock, 9, 20.0)
    assert [each.endswith(NEVER) for each in said(caplog)] == [True]


def test_a_training_beside_it_is_no_step_of_this_training(caplog: pytest.LogCaptureFixture) -> None:
    """An evaluation that fits a probe of its own, for ten thousand steps."""
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        for _ in range(6):
            pair.turn()
            guard.step()
            probe = nn.Linear(4, 1)
            beside = torch.optim.SGD(probe.parameters(), lr=0.1)
            probe(torch.ones(2, 4)).sum().backward()
            for _ in range(200):
                clock.advance(1.0)
                beside.step()
    assert said(caplog) == []


def test_one_opt_missing(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    values = pair.values
    del values["ob"]
    with watched(values) as guard:
        guard.restore()
        for number in range(30):
            pair.turn(number)
            guard.step()
        position = guard._position()
    told = said(caplog)
    assert told[0].endswith("AdamW trains b.weight, b.bias and is not registered [SG406]")
    assert [each for each in told if each.startswith("an optimizer is not registered")] == [
        "an optimizer is not registered (AdamW trains b.weight, b.bias), so its state is not saved and a resumed run "
        "starts it fresh; add it to spotguard.register(…)"
    ]
    assert position.misuse == told[1]
    assert position.mode == "boundary", "what steps unseen is never read in the middle of a turn"


def test_no_opt_registered(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with watched({"a": pair.a, "b": pair.b}) as guard:
        guard.restore()
        for number in range(30):
            pair.turn(number)
            guard.step()
    (told,) = [each for each in said(caplog) if each.startswith("an optimizer is not registered")]
    assert "(AdamW trains a.weight, a.bias, AdamW trains b.weight, b.bias)" in told


def test_model_missing() -> None:
    pair = Pair()
    with pytest.raises(StateError, match="no registered module holds"), watched({"oa": pair.oa}):
        pass


def test_nothing_of_it_registered(caplog: pytest.LogCaptureFixture) -> None:
    """A second model with its optimizer, which the loop trains all the time."""
    pair, beside = Pair(), nn.Linear(4, 1)
    its = torch.optim.SGD(beside.parameters(), lr=0.1)
    with watched(pair.values) as guard:
        guard.restore()
        for number in range(10):
            pair.turn(number)
            beside(torch.ones(2, 4)).sum().backward()
            its.step()
            guard.step()
        position = guard._position()
    (told,) = said(caplog)
    assert told.startswith(
        "an optimizer and what it trains are not registered (SGD trains 2 tensors of no registered"
    )
    assert (position.misuse, position.mode) == ("", "window"), "it may be wanted so"


def test_step_first(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with watched(pair.values) as guard:
        for number in range(guard.restore(), 30):
            guard.step()
            pair.turn(number)
        position = guard._position()
    (told,) = said(caplog)
    assert told.startswith(TOP.partition("%s")[0])
    assert "test_never_steps.py:" in told
    assert position.misuse == told


def test_step_between(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with watched(pair.values) as guard:
        for number in range(guard.restore(), 30):
            pair.backward(number)
            pair.oa.step()
            guard.step()
            pair.ob.step()
    (told,) = said(caplog)
    assert told.startswith(BETWEEN.partition("%s")[0])
    assert "and ob steps after it" in told


def test_a_notice_says_why_there_was_no_boundary() -> None:
    """What a drill of such a job prints: that time ran out is the smaller half."""
    pair, clock, store = Pair(), ManualClock(), WatchedStore()
    with watched(pair.values, clock, store) as guard:
        guard.restore()
        pair.turn()
        late = SaveRequest("emergency", CancelScope(clock, clock.monotonic()))
        with pytest.raises(Abandoned) as caught:
            guard._saver._still.stand(late, boundary_only=False)
        guard._gate.open()
    assert (
        str(caught.value)
        == f"out of time: training reached no guard.step() before the deadline; {NEVER} [SG502]"
    )
    assert store.manifests() == []


def test_a_notice_before_restore_says_so_too() -> None:
    pair, clock, store = Pair(), ManualClock(), WatchedStore()
    with watched(pair.values, clock, store) as guard:
        unmarked(pair, clock, 20, 2.0)
        with pytest.raises(CheckpointError) as caught:
            guard._saver._do(SaveRequest("emergency", CancelScope(clock)))
    assert str(caught.value) == NEITHER
    assert store.manifests() == []


def test_an_optimizer_steps_in_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    pair, clock = Pair(), ManualClock()
    with watched(pair.values, clock) as guard:
        guard.restore()
        thread = threading.Thread(target=unmarked, args=(pair, clock, 30, 2.0))
        thread.start()
        thread.join(100)
        assert guard._position().unmarked_steps == 60
    assert [each.endswith(NEVER) for each in said(caplog)] == [True]


def test_a_step_that_raises_is_no_end_of_counting(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise ValueError("no step today")

    pair, clock = Pair(), ManualClock()
    broken = Breaks(pair.a.parameters(), lr=0.1)
    values = {**pair.values, "oa": broken}
    with watched(values, clock) as guard:
        guard.restore()
        for number in range(60):
            clock.advance(1.0)
            pair.backward(number)
            with pytest.raises(ValueError, match="no step today"):
                broken.step()
            pair.ob.step()
            guard.step()
        assert guard._position().unmarked_steps == 0
    assert said(caplog) == []


class Hostile:
    """Registered, and not to be looked into."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("private")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing in it."""


def test_a_mistake_of_the_monitor_ends_the_monitor_and_not_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair()
    values: dict[str, Any] = {**pair.values, "hostile": Hostile()}
    del values["ob"]
    with watched(values) as guard:
        guard.restore()
        for number in range(10):
            pair.turn(number)
            guard.step()
        assert guard.save().step == 10
        assert not torch_optimizer._global_optimizer_pre_hooks
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [
        "internal error; please report it [SG704]"
    ]


def test_no_hook_outlives_a_guard_or_a_register_that_failed() -> None:
    pair = Pair()
    with watched(pair.values) as guard:
        assert len(torch_optimizer._global_optimizer_pre_hooks) == 1
        guard.restore()
    assert not torch_optimizer._global_optimizer_pre_hooks

    class Refuses(WatchedStore):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("no store today")

        put_if_absent = put

    with pytest.raises(KeyError), watched(pair.values, store=Refuses()):
        pass
    assert not torch_optimizer._global_optimizer_pre_hooks


def test_a_forked_child_looks_at_nothing() -> None:
    pair = Pair()
    with watched(pair.values) as guard:
        guard.restore()
        pid = os.fork()
        if pid == 0:
            os._exit(len(torch_optimizer._global_optimizer_pre_hooks))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(torch_optimizer._global_optimizer_pre_hooks) == 1


def test_steps_ask_for_no_time() -> None:
    """Ten thousand usual turns: the clock is asked when training begins, and never again."""
    pair = Pair(lambda params: torch.optim.SGD(params, lr=0.0))
    asked: list[float] = []

    def now() -> float:
        asked.append(0.0)
        return 0.0

    monitor = StepMonitor(pair.values, pair.optimizers, now, lambda why: None, lambda *around: None)
    monitor.begin()
    try:
        monitor.restored()
        for _ in range(10_000):
            pair.oa.step()
            pair.ob.step()
            monitor.boundary()
    finally:
        monitor.close()
    assert len(asked) == 2


def test_a_state_without_a_guard_hooks_nothing() -> None:
    pair = Pair()
    state = State(pair.values, lambda *_: None)
    pair.turn()
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert state.monitor.steps == 0
    state.close()


def test_the_guard_of_a_later_register_sees_its_own(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Pair(), Pair()
    for pair in (first, second):
        with watched(pair.values) as guard:
            guard.restore()
            pair.turn()
            guard.step()
    assert said(caplog) == []


def test_an_optimizer_in_the_place_of_one_that_is_gone_is_another() -> None:
    """Of one turn, at one address: the first trains what is registered, the second does not."""
    pair, probe = Pair(), nn.Linear(2, 2)
    monitor = StepMonitor(pair.values, pair.optimizers, lambda: 0.0, lambda why: None, lambda *around: None)
    monitor.restored()
    for _ in range(1000):
        first = torch.optim.SGD(pair.a.parameters(), lr=0.1)
        monitor._on_step(first, (), {})
        before, place = monitor.steps, id(first)
        del first
        second = torch.optim.SGD(probe.parameters(), lr=0.1)
        if id(second) == place:
            break
    else:
        pytest.skip("this Python takes no address twice")
    monitor._on_step(second, (), {})
    assert monitor.steps == before
