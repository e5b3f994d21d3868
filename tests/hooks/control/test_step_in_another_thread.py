"""`optimizer.step()` in another thread than `guard.step()`: a checkpoint never lies in the middle of a step."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import GateRule, Shut
from tests.hooks.control.gates import PATIENCE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.fakes.training import guarded  # noqa: E402
from tests.fakes.watched_store import WatchedStore  # noqa: E402


class Halting(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """Adds 1 to each parameter, and halts between the first and the second until it is let go."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        self.halted, self.go_on = threading.Event(), threading.Event()

    def step(self, closure: Callable[[], float] | None = None) -> None:
        first, second = self.param_groups[0]["params"]
        with torch.no_grad():
            first.add_(1.0)
            self.halted.set()
            assert self.go_on.wait(PATIENCE)
            second.add_(1.0)


def layers() -> Any:
    return torch.nn.ParameterList([torch.zeros(4), torch.zeros(4)])


@contextmanager
def beside(what: Callable[[], object]) -> Iterator[threading.Thread]:
    """Do it in a thread of its own, and see it end."""
    thread = threading.Thread(target=what, name="learner", daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_boundary_waits_for_the_step_of_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    store, model = WatchedStore(), layers()
    optimizer = Halting(model.parameters())
    with guarded(store, {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        with beside(optimizer.step):
            assert optimizer.halted.wait(PATIENCE)
            warned = threading.Event()

            def let_go() -> None:
                assert warned.wait(PATIENCE)
                optimizer.go_on.set()

            def see(record: logging.LogRecord) -> bool:
                warned.set()
                return True

            caplog.handler.addFilter(see)
            with beside(let_go):
                guard.step()
            caplog.handler.removeFilter(see)
            assert "guard.step() waits until the optimizer.step() of another thread (learner)" in caplog.text
            saved = guard.save()
        assert saved.step == 1
    again = layers()
    with guarded(store, {"model": again, "optimizer": Halting(again.parameters())}) as guard:
        assert guard.restore() == 1
    assert [float(each.detach().mean()) for each in again] == [1.0, 1.0]


def test_a_step_that_raised_holds_no_boundary_up() -> None:
    """Torch calls no post-hook then; the thread that stepped lives on."""
    store, model = WatchedStore(), layers()
    raised, over = threading.Event(), threading.Event()

    class Refusing(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> None:
            raise ArithmeticError

    optimizer = Refusing(model.parameters(), lr=1.0)

    def learn() -> None:
        with pytest.raises(ArithmeticError):
            optimizer.step()
        raised.set()
        assert over.wait(PATIENCE)

    with guarded(store, {"model": model, "optimizer": optimizer}) as guard, beside(learn):
        guard.restore()
        try:
            assert raised.wait(PATIENCE)
            guard.step()
            assert guard._gate.place.changing == {}
        finally:
            over.set()


def test_a_foreign_thread_parks_while_a_boundary_is_taken_and_held() -> None:
    gate, passed = Gate(), threading.Event()
    gate.begin_boundary()  # its copies are being made

    def change() -> None:
        gate.before_change()
        passed.set()

    with beside(change):
        waits(gate, 1)
        assert not passed.is_set()
        gate.close(Shut.AT_BOUNDARY)
        with beside(gate.end_boundary):
            waits(gate, 2)
            assert not passed.is_set(), "the boundary is held, and another thread changes what is read"
            gate.open()
    assert passed.is_set()


def test_a_boundary_that_raises_lets_other_threads_step() -> None:
    gate, passed = Gate(), threading.Event()
    gate.begin_boundary()

    def change() -> None:
        gate.before_change()
        passed.set()

    with beside(change):
        waits(gate, 1)
        gate.abort_boundary()
    assert passed.is_set()


def test_a_step_inside_a_step_ends_nothing() -> None:
    """A wrapper whose `step` calls a registered optimizer's, and goes on changing parameters."""
    gate, frame = Gate(), sys._getframe()
    gate.before_change(frame)
    gate.before_change(sys._getframe(1))
    gate.after_change(sys._getframe(1))
    assert list(gate.place.changing.values()) == [frame]
    gate.after_change(frame)
    assert gate.place.changing == {}


def waits(gate: Gate, count: int) -> None:
    """Until so many threads are parked."""
    never = threading.Event()
    while gate._parked < count:
        never.wait(0.001)


def test_one_thread_that_steps_hears_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    store, model = WatchedStore(), layers()
    optimizer = torch.optim.AdamW(model.parameters())
    with guarded(store, {"model": model, "optimizer": optimizer}) as guard, caplog.at_level(logging.WARNING):
        guard.restore()
        for _ in range(3):
            for param in model:
                param.grad = torch.ones_like(param)
            optimizer.step()
            assert guard._gate.place.changing == {}
            guard.step()
    assert "another thread" not in caplog.text


def test_a_step_that_waited_for_a_boundary_is_the_next_ones() -> None:
    """Its thread parks in the pre-hook while the boundary is taken: what it changes then, an optimizer has changed."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with guarded(WatchedStore(), {"model": model, "optimizer": optimizer}) as guard:
        guard.restore()
        guard.step()
        gate = guard._gate
        gate.begin_boundary()
        with beside(optimizer.step):
            waits(gate, 1)
            guard._state.at_boundary()
            gate.end_boundary()
        guard.step()
        assert guard._state.boundary_only == ""


def test_a_step_begins_behind_the_thread_that_leaves_its_boundary() -> None:
    """Else the gate, shut again before that thread wakes, finds it at a boundary that is changed already."""
    main, learner = 1, 2
    place = GateRule()
    place.close(Shut.AT_BOUNDARY)
    assert place.may_change(main)
    assert place.may_begin_boundary(main)
    assert not place.complete()
    place.rest(main)
    place.close(Shut.OPEN)
    assert not place.may_change(learner)
    place.close(Shut.AT_BOUNDARY)
    assert place.steady()
    place.close(Shut.OPEN)
    assert place.may_leave_boundary(main)
    assert place.may_change(learner)
    place.close(Shut.AT_BOUNDARY)
    assert not place.steady()


def test_a_boundary_from_which_ctrl_c_called_its_thread_away_is_none_after_the_next_step() -> None:
    """Else each later save of a boundary would begin in the middle of a step."""
    place = GateRule()
    place.close(Shut.AT_BOUNDARY)
    assert place.may_change(1)
    assert place.may_begin_boundary(1)
    assert not place.complete()
    place.rest(1)
    place.held = None  # as `Gate` does when its wait raises
    assert not place.may_begin_boundary(1), "what is read there was copied anew"
    place.close(Shut.OPEN)
    assert place.may_change(1)
    place.close(Shut.AT_BOUNDARY)
    assert not place.steady()
