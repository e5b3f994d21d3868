"""Optimizers that step on gradients of earlier turns, which no checkpoint has, and their twins that do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

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


def batches_as_turns(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    backward(pair, number)
    if number % 4 == 3:
        both(pair, "step")
        both(pair, "zero_grad")


def cleared_at_the_first_batch(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    if number % 4 == 0:
        both(pair, "zero_grad")
    backward(pair, number)
    if number % 4 == 3:
        both(pair, "step")


def a_second_optimizer(pair: Pair, scaler: torch.amp.GradScaler, number: int, every: int = 3) -> None:
    pair.oa.zero_grad()
    backward(pair, number)
    pair.oa.step()
    if number % every == every - 1:
        pair.ob.step()
        pair.ob.zero_grad()


def behind_a_scaler(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    scaler.scale(backward(pair, number).detach())
    if number % 4 == 3:
        for optimizer in (pair.oa, pair.ob):
            scaler.step(optimizer)
        scaler.update()
        both(pair, "zero_grad")


def a_turn_late(pair: Pair, scaler: torch.amp.GradScaler, number: int) -> None:
    """Forward and backward in one turn, and the step in the next one."""
    if number % 2:
        both(pair, "step")
        both(pair, "zero_grad")
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


#: What is named, and whether a resumed run ends as an uninterrupted one.
INEXACT: dict[str, tuple[Step, str]] = {
    "batches as turns": (batches_as_turns, "oa"),
    "cleared at the first batch": (cleared_at_the_first_batch, "oa"),
    "a second optimizer": (a_second_optimizer, "ob"),
    "a second optimizer, at every other turn": (partial(a_second_optimizer, every=2), "ob"),
    "behind a scaler": (behind_a_scaler, "oa"),
    "a turn late": (a_turn_late, "oa"),
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
}


def lives(step: Step) -> bool:
    """Whether a run that is cut and resumed ends as an uninterrupted one."""

    def make() -> Job:
        seed()
        pair, scaler = Pair(), torch.amp.GradScaler("cpu", init_scale=4.0)
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
