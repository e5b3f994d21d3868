"""Optimizers that step on gradients of earlier turns, which no checkpoint has, and their twins that do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes.loops import Pair, said
from tests.fakes.training import Job, finished, guarded, seed, step_on, trajectory
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

#: Steps of a run, and of its first life.
TOTAL, CUT = 16, 11

Step = Callable[[Pair, torch.amp.GradScaler, int], None]


def backward(pair: Pair, number: int, *, generator: bool = True) -> torch.Tensor:
    """Add to the gradients of both layers, or of the last one."""
    hidden = pair.a(torch.full((2, 4), 0.1 * number))
    loss: torch.Tensor = pair.b(hidden if generator else hidden.detach()).square().mean()
    loss.backward()
    return loss


def both(pair: Pair, what: str, **options: bool) -> None:
    for optimizer in (pair.oa, pair.ob):
        getattr(optimizer, what)(**options)


class Large(Pair):
    """Weights of more than 1 MiB, and nothing smaller."""

    def __init__(self) -> None:
        super().__init__(lambda params: torch.optim.SGD(params, lr=1e-3))
        self.a, self.b = nn.Linear(4, 2**18 + 1, bias=False), nn.Linear(2**18 + 1, 1, bias=False)
        self.oa, self.ob = (torch.optim.SGD(each.parameters(), lr=1e-3) for each in (self.a, self.b))


class Ninth(Pair):
    """The pair behind eight other optimizers, which train nothing."""

    @property
    def values(self) -> dict[str, Any]:
        others = {f"other_{number}": nn.Linear(1, 1) for number in range(8)}
        optimizers = {f"its_{name}": torch.optim.SGD(each.parameters()) for name, each in others.items()}
        return {**others, **optimizers, **super().values}


def batches_as_turns(pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True) -> None:
    backward(pair, number)
    if number % 4 == 3:
        both(pair, "step")
        both(pair, "zero_grad", set_to_none=none)


def cleared_at_the_first_batch(
    pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True
) -> None:
    if number % 4 == 0:
        both(pair, "zero_grad", set_to_none=none)
    backward(pair, number)
    if number % 4 == 3:
        both(pair, "step")


def a_second_optimizer(
    pair: Pair, scaler: torch.amp.GradScaler, number: int, every: int = 3, none: bool = True
) -> None:
    pair.oa.zero_grad()
    backward(pair, number)
    pair.oa.step()
    if number % every == every - 1:
        pair.ob.step()
        pair.ob.zero_grad(set_to_none=none)


def behind_a_scaler(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    scaler.scale(backward(pair, number).detach())
    if number % 4 == 3:
        for optimizer in (pair.oa, pair.ob):
            scaler.step(optimizer)
        scaler.update()
        both(pair, "zero_grad")


def a_turn_late(pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True) -> None:
    """Forward and backward in one turn, and the step in the next one."""
    if number % 2:
        both(pair, "step")
        both(pair, "zero_grad", set_to_none=none)
    else:
        backward(pair, number)


def all_batches_in_a_turn(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """As the page tells: the turn lasts until each optimizer has stepped."""
    for batch in range(3):
        pair.oa.zero_grad()
        backward(pair, number + batch)
        pair.oa.step()
    pair.ob.step()
    pair.ob.zero_grad()


def a_bad_batch(
    pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True, late: bool = False
) -> None:
    if not late:
        both(pair, "zero_grad", set_to_none=none)
    backward(pair, number)
    if number % 4:  # a loss that is not finite
        both(pair, "step")
    if late:
        both(pair, "zero_grad", set_to_none=none)


def a_scaler_that_skips(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    both(pair, "zero_grad", set_to_none=False)
    scaler.scale(backward(pair, number).detach())
    if number % 4 == 0:
        for layer in (pair.a, pair.b):
            layer.weight.grad.fill_(torch.inf)  # type: ignore[union-attr]
    for optimizer in (pair.oa, pair.ob):
        scaler.step(optimizer)
    scaler.update()


def a_turn_without_backward(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    if number % 5 == 4:
        both(pair, "zero_grad", set_to_none=False)
        backward(pair, number)
        both(pair, "step")


def a_generator_that_steps_at_times(
    pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True
) -> None:
    """The critic's turns leave gradients to the generator, which clears them before its own."""
    pair.ob.zero_grad(set_to_none=none)
    backward(pair, number)
    pair.ob.step()
    if number % 5 == 4:
        pair.oa.zero_grad(set_to_none=none)
        backward(pair, number)
        pair.oa.step()


def alternating(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """Each turn leaves gradients to the optimizer of the next one, which zeroes them in place."""
    optimizer = pair.ob if number % 2 else pair.oa
    optimizer.zero_grad(set_to_none=False)
    backward(pair, number)
    optimizer.step()


def a_closure(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    def anew() -> torch.Tensor:
        both(pair, "zero_grad")
        return backward(pair, number)

    backward(pair, number)
    if number % 2:
        pair.oa.step(anew)  # type: ignore[arg-type]
        pair.ob.step(anew)  # type: ignore[arg-type]


def a_closure_that_does_not_zero(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    pair.oa.zero_grad()
    if number % 3 == 2:
        pair.ob.step(partial(backward, pair, number))  # type: ignore[arg-type]
        pair.ob.zero_grad()
    else:
        backward(pair, number)
    pair.oa.step()


def zeroed_as_data(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """As old scripts do, which no version of a tensor tells."""
    backward(pair, number)
    pair.ob.step()
    pair.ob.zero_grad()
    if number % 3 == 2:
        for p in pair.a.parameters():
            p.grad.data.zero_()  # type: ignore[union-attr]
        backward(pair, number)
        pair.oa.step()


def an_environment(pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool = True) -> None:
    """One turn in four trains, and leaves its gradients behind."""
    if number % 4 == 3:
        both(pair, "zero_grad", set_to_none=none)
        backward(pair, number)
        both(pair, "step")


def frozen_in_the_other_phase(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    layer, optimizer = (pair.b, pair.ob) if number % 3 else (pair.a, pair.oa)
    for each in (pair.a, pair.b):
        each.requires_grad_(each is layer)
    optimizer.zero_grad(set_to_none=False)
    backward(pair, number)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    optimizer.step()


def phases_of_several_turns(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """Three turns of one, three of the other, each of which zeroes its own only."""
    optimizer = pair.ob if number % 6 < 3 else pair.oa
    optimizer.zero_grad(set_to_none=False)
    for _ in range(2):
        backward(pair, number)
    optimizer.step()


def a_closure_at_times(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    def anew() -> torch.Tensor:
        pair.oa.zero_grad(set_to_none=False)
        return backward(pair, number)

    pair.ob.zero_grad()
    backward(pair, number)
    pair.ob.step()
    if number % 3 == 2:
        pair.oa.step(anew)  # type: ignore[arg-type]


def never_zeroed(pair: Pair, scaler: torch.amp.GradScaler, number: int, keep: float = 1.0) -> None:
    pair.ob.zero_grad()
    for p in pair.a.parameters():
        if p.grad is not None and keep < 1.0:
            p.grad.mul_(keep)
    backward(pair, number)
    both(pair, "step")


def frozen_at_each_boundary(pair: Pair, scaler: torch.amp.GradScaler, number: int, step: Step) -> None:
    pair.a.requires_grad_(True)
    pair.b.requires_grad_(True)
    step(pair, scaler, number)
    pair.a.requires_grad_(False)
    pair.b.requires_grad_(False)


def zeroed(pair: Pair, scaler: torch.amp.GradScaler, number: int, none: bool) -> None:
    both(pair, "zero_grad", set_to_none=none)
    backward(pair, number)
    both(pair, "step")


def zeroed_behind_the_step(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    backward(pair, number)
    both(pair, "step")
    both(pair, "zero_grad", set_to_none=False)


def refilled_as_data(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """No turn zeroes what the next one overwrites, which no version of a tensor tells."""
    for p in (*pair.a.parameters(), *pair.b.parameters()):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        p.grad.data.fill_(0.1 * number)
    both(pair, "step")


def overwritten_before_the_step(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """A pass that adds nothing comes before the step, and one that adds to what no step will use behind it."""
    pair.ob.zero_grad()
    if number % 3 == 2:
        hidden = pair.b(pair.a(torch.full((2, 4), 0.1 * number)))
        grads = torch.autograd.grad(hidden.square().mean(), [*pair.a.parameters()])
        for p, grad in zip(pair.a.parameters(), grads, strict=True):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad.copy_(grad)
        pair.oa.step()
    backward(pair, number)
    pair.ob.step()


#: What is named; a resumed run does not end as an uninterrupted one.
INEXACT: dict[str, tuple[Step, str]] = {
    "batches as turns": (batches_as_turns, "oa"),
    "cleared at the first batch": (cleared_at_the_first_batch, "oa"),
    "a second optimizer": (a_second_optimizer, "ob"),
    "a second optimizer, at every other turn": (partial(a_second_optimizer, every=2), "ob"),
    "behind a scaler": (behind_a_scaler, "oa"),
    "a turn late": (a_turn_late, "oa"),
    "batches as turns, zeroed in place": (partial(batches_as_turns, none=False), "oa"),
    "cleared at the first batch, in place": (partial(cleared_at_the_first_batch, none=False), "oa"),
    "a second optimizer, zeroed in place": (partial(a_second_optimizer, none=False), "ob"),
    "a turn late, zeroed in place": (partial(a_turn_late, none=False), "oa"),
    "a closure that does not zero": (a_closure_that_does_not_zero, "ob"),
    "never zeroed": (never_zeroed, "oa"),
    "never zeroed, but decayed": (partial(never_zeroed, keep=0.9), "oa"),
    "never zeroed, and frozen at each boundary": (partial(frozen_at_each_boundary, step=never_zeroed), "oa"),
    "batches as turns, frozen at each boundary": (
        partial(frozen_at_each_boundary, step=partial(batches_as_turns, none=False)),
        "oa",
    ),
    "a second optimizer, frozen at each boundary": (
        partial(frozen_at_each_boundary, step=partial(a_second_optimizer, every=2)),
        "ob",
    ),
}
EXACT: dict[str, Step] = {
    "all batches in a turn": all_batches_in_a_turn,
    "a bad batch": a_bad_batch,
    "a bad batch, zeroed in place": partial(a_bad_batch, none=False),
    "a bad batch, zeroed in place after the step": partial(a_bad_batch, none=False, late=True),
    "a scaler that skips": a_scaler_that_skips,
    "a turn without backward": a_turn_without_backward,
    "a generator that steps at times": a_generator_that_steps_at_times,
    "a generator zeroed in place": partial(a_generator_that_steps_at_times, none=False),
    "alternating": alternating,
    "a closure": a_closure,
    "a closure at times": a_closure_at_times,
    "zeroed as data": zeroed_as_data,
    "an environment": an_environment,
    "an environment, zeroed in place": partial(an_environment, none=False),
    "frozen in the other phase": frozen_in_the_other_phase,
    "phases of several turns": phases_of_several_turns,
    "zeroed in place": partial(zeroed, none=False),
    "zeroed behind the step": zeroed_behind_the_step,
    "refilled as data": refilled_as_data,
    "overwritten before the step": overwritten_before_the_step,
    "frozen at each boundary": partial(frozen_at_each_boundary, step=partial(zeroed, none=True)),
    "frozen at each boundary, zeroed in place": partial(
        frozen_at_each_boundary, step=partial(zeroed, none=False)
    ),
    "a generator frozen at each boundary": partial(
        frozen_at_each_boundary, step=partial(a_generator_that_steps_at_times, none=False)
    ),
}


def lives(step: Step, kind: Callable[[], Pair] = Pair) -> bool:
    """Whether a run that is cut and resumed ends as an uninterrupted one."""

    def make() -> Job:
        seed()
        pair, scaler = kind(), torch.amp.GradScaler("cpu", init_scale=4.0)
        return Job({**pair.values, "scaler": scaler}, partial(step, pair, scaler))

    job, store = make(), WatchedStore()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, *range(CUT))
        guard.save()
    return finished(store, make, TOTAL) == (CUT, trajectory(make, TOTAL)[TOTAL])


@pytest.mark.parametrize("kind", INEXACT)
def test_an_optimizer_that_steps_on_gradients_of_earlier_turns_is_named(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    step, name = INEXACT[kind]
    assert not lives(step)
    is_named(name, caplog)


@pytest.mark.parametrize("kind", [Large, Ninth])
def test_neither_large_weights_nor_many_optimizers_hide_an_old_gradient(
    kind: Callable[[], Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    assert not lives(a_second_optimizer, kind)
    is_named("ob", caplog)


def is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = set(said(caplog))
    assert len(lines) == 1, lines
    assert lines.pop().startswith(f"{name!r} steps on gradients of an earlier turn")


@pytest.mark.parametrize("kind", EXACT)
def test_an_optimizer_that_steps_on_gradients_of_its_turn_is_not_named(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    assert lives(EXACT[kind])
    assert said(caplog) == []
