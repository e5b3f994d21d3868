"""Loops that use spotguard as they should, however they look: not one word is said about them, fresh or resumed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import SWALR, AveragedModel

from spotguard.hooks.guard import Guard
from tests.fakes.clock import ManualClock
from tests.fakes.loops import Pair, Wrapper, said, watched
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch

#: Turns of each loop: enough for every threshold there is.
TURNS = 30
#: Seconds that each turn takes on the test's clock.
SLOW = 8.0

Loop = Callable[[Guard, int], Generator[None]]
#: What is registered, and a generator that trains, and yields where time goes by.
Make = Callable[[], tuple[dict[str, Any], Loop]]


def ppo() -> tuple[dict[str, Any], Loop]:
    """A rollout, then several epochs over its minibatches, then the boundary."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            for _ in range(4):
                for _ in range(8):
                    pair.turn(number)
            guard.step()

    return pair.values, loop


def gan(*, generator_first: bool) -> tuple[dict[str, Any], Loop]:
    """A critic that steps each turn, and a generator at every fifth."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.backward(number)
            if generator_first and number % 5 == 4:
                pair.oa.step()
            pair.ob.step()
            if not generator_first and number % 5 == 4:
                pair.oa.step()
            guard.step()

    return pair.values, loop


def late_start() -> tuple[dict[str, Any], Loop]:
    """Its first turn leaves out one of the optimizers, as a boundary between the two would have it."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.backward(number)
            if number > done:
                pair.oa.step()
            pair.ob.step()
            guard.step()

    return pair.values, loop


def accumulation(*, boundary_each: bool) -> tuple[dict[str, Any], Loop]:
    """Four batches a step; a boundary after the step, or after each batch."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            for batch in range(4):
                yield
                pair.backward(4 * number + batch)
                if batch == 3:
                    pair.oa.step()
                    pair.ob.step()
                if boundary_each or batch == 3:
                    guard.step()

    return pair.values, loop


def amp(*, skipped: int, both: bool) -> tuple[dict[str, Any], Loop]:
    """The scaler skips the first steps, of one optimizer or of both, and gradients are gone at the boundary."""
    pair = Pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            scaler.scale(pair.backward(number).detach())
            if number - done < skipped:
                pair.a.weight.grad.fill_(torch.inf)  # type: ignore[union-attr]
                if both:
                    pair.b.weight.grad.fill_(torch.inf)  # type: ignore[union-attr]
            scaler.step(pair.oa)
            scaler.step(pair.ob)
            scaler.update()
            pair.oa.zero_grad()
            pair.ob.zero_grad()
            guard.step()

    return {**pair.values, "scaler": scaler}, loop


def lbfgs() -> tuple[dict[str, Any], Loop]:
    pair = Pair(lambda params: torch.optim.LBFGS(params, lr=0.01, max_iter=3))

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            for optimizer in (pair.oa, pair.ob):
                optimizer.step(partial(pair.backward, number))  # type: ignore[arg-type]
            guard.step()

    return pair.values, loop


def swa() -> tuple[dict[str, Any], Loop]:
    """Averaged weights, batch statistics anew, and a scheduler of its own."""
    pair = Pair()
    averaged, scheduler = AveragedModel(pair.a), SWALR(pair.oa, swa_lr=0.01)

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.turn(number)
            averaged.update_parameters(pair.a)
            scheduler.step()
            guard.step()

    return {**pair.values, "averaged": averaged, "scheduler": scheduler}, loop


def evaluation_first() -> tuple[dict[str, Any], Loop]:
    """A long evaluation before the first step, and others later."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            if number % 10 == 0:
                for batch in range(9):
                    yield
                    with torch.no_grad():
                        pair.b(pair.a(torch.full((2, 4), float(batch))))
            pair.turn(number)
            guard.step()

    return pair.values, loop


def warm_up() -> tuple[dict[str, Any], Loop]:
    """The learning rate comes up over the first turns, the first of which have a rate of zero."""
    pair = Pair()
    scheduler = LambdaLR(pair.oa, lambda turn: min(1.0, turn / 10))

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.turn(number)
            scheduler.step()
            guard.step()

    return {**pair.values, "scheduler": scheduler}, loop


class EmaOptimizer(torch.optim.Optimizer):
    """An optimizer around another one, which it steps, with averages of what that one trains."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.averages = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    def step(self, closure: Any = None) -> Any:
        loss = self.inner.step(closure)
        params = [p.detach() for group in self.inner.param_groups for p in group["params"]]
        torch._foreach_lerp_(self.averages, params, 0.1)
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "averages": self.averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        for mine, saved in zip(self.averages, state["averages"], strict=True):
            mine.copy_(saved)


def ema_optimizer() -> tuple[dict[str, Any], Loop]:
    pair = Pair()
    ema = EmaOptimizer(pair.oa)

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.backward(number)
            ema.step()
            pair.ob.step()
            guard.step()

    return {"a": pair.a, "b": pair.b, "ema": ema, "ob": pair.ob}, loop


def looked_through() -> tuple[dict[str, Any], Loop]:
    """A wrapper is registered, and saved as what it leads to."""
    pair = Pair()
    wrapper = Wrapper(pair.oa)

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.backward(number)
            wrapper.step()
            pair.ob.step()
            guard.step()

    return {**pair.values, "oa": wrapper}, loop


def wrapped_unregistered() -> tuple[dict[str, Any], Loop]:
    """The optimizer inside is registered, and the loop steps the wrapper."""
    values, loop = looked_through()
    return {**values, "oa": values["oa"].optimizer}, loop


def two_phases() -> tuple[dict[str, Any], Loop]:
    """First one layer is trained, then the other one, in two loops."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS // 2):
            yield
            pair.backward(number)
            pair.oa.step()
            guard.step()
        for number in range(max(done, TURNS // 2), TURNS):
            yield
            pair.backward(number)
            pair.ob.step()
            guard.step()

    return pair.values, loop


def every_kth() -> tuple[dict[str, Any], Loop]:
    """One optimizer at every third turn, and several steps of the other one in each."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            pair.backward(number)
            if number % 3 == 2:
                pair.ob.step()
            for _ in range(1 + number % 3):
                pair.oa.step()
            guard.step()

    return pair.values, loop


def per_epoch() -> tuple[dict[str, Any], Loop]:
    """A boundary for each epoch of fifty steps, which takes no half minute."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for _ in range(done, TURNS):
            yield
            for number in range(50):
                pair.turn(number)
            guard.step()

    return pair.values, loop


def steps() -> tuple[dict[str, Any], Loop]:
    """`guard.steps` makes the boundary, at the head of the loop as far as calls go; a first step is skipped."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in guard.steps(TURNS):
            yield
            if number > done:
                pair.turn(number)

    return pair.values, loop


def own_generator() -> tuple[dict[str, Any], Loop]:
    """The same as a generator of the script's own."""
    pair = Pair()

    def numbers(guard: Guard, done: int) -> Generator[int]:
        for number in range(done, TURNS):
            yield number
            guard.step()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in numbers(guard, done):
            yield
            if number > done:
                pair.turn(number)

    return pair.values, loop


def replay_first() -> tuple[dict[str, Any], Loop]:
    """A boundary for each step of an environment; training begins when there is something to learn from."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            if number >= 7:
                pair.turn(number)
            guard.step()

    return pair.values, loop


def bad_first_batch() -> tuple[dict[str, Any], Loop]:
    """A batch that is not finite is left out, with a boundary of its own above the step."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            if number == done:
                guard.step()
                continue
            pair.turn(number)
            guard.step()

    return pair.values, loop


def callbacks() -> tuple[dict[str, Any], Loop]:
    """A trainer that calls functions: one that steps, and one at the end of the batch."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        def ended() -> None:
            guard.step()

        def trained(number: int) -> None:
            if number > done:
                pair.turn(number)

        for number in range(done, TURNS):
            yield
            for call, values in ((trained, (number,)), (ended, ())):
                call(*values)

    return pair.values, loop


def restored_option() -> tuple[dict[str, Any], Loop]:
    """A rate that begins at an option, which a registered dict has set."""
    pair, saved = Pair(), {"rate": 0.1}

    def loop(guard: Guard, done: int) -> Generator[None]:
        known = argparse.Namespace(**{"rate": 0.5, **saved})
        rate = known.rate
        for number in range(done, TURNS):
            yield
            rate *= 0.9
            for group in pair.oa.param_groups:
                group["lr"] = rate
            pair.turn(number)
            saved["rate"] = rate
            guard.step()

    return {**pair.values, "saved": saved}, loop


def attack() -> tuple[dict[str, Any], Loop]:
    """In each turn an optimizer made anew, over inputs that nobody registered."""
    pair = Pair()

    def loop(guard: Guard, done: int) -> Generator[None]:
        for number in range(done, TURNS):
            yield
            inputs = nn.Parameter(torch.zeros(2, 4))
            inner = torch.optim.SGD([inputs], lr=0.1)
            for _ in range(5):
                pair.b(pair.a(inputs)).sum().backward()
                inner.step()
            pair.turn(number)
            guard.step()

    return pair.values, loop


LOOPS: dict[str, Make] = {
    "ppo": ppo,
    "gan": lambda: gan(generator_first=False),
    "gan-generator-first": lambda: gan(generator_first=True),
    "late-start": late_start,
    "accumulation": lambda: accumulation(boundary_each=False),
    "accumulation-boundary-each": lambda: accumulation(boundary_each=True),
    "amp-one-skipped": lambda: amp(skipped=1, both=True),
    "amp-two-skipped": lambda: amp(skipped=2, both=True),
    "amp-one-optimizer-skipped": lambda: amp(skipped=1, both=False),
    "lbfgs": lbfgs,
    "swa": swa,
    "evaluation-first": evaluation_first,
    "warm-up": warm_up,
    "ema-optimizer": ema_optimizer,
    "wrapper-looked-through": looked_through,
    "wrapper-unregistered": wrapped_unregistered,
    "two-phases": two_phases,
    "every-kth": every_kth,
    "per-epoch": per_epoch,
    "steps": steps,
    "own-generator": own_generator,
    "replay-first": replay_first,
    "bad-first-batch": bad_first_batch,
    "callbacks": callbacks,
    "attack": attack,
    "restored-option": restored_option,
}


@pytest.mark.parametrize("kind", LOOPS)
def test_nothing_is_said_of_a_legitimate_loop(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPOTGUARD_EVERY", "off")
    clock, store = ManualClock(), WatchedStore()
    for until in (2 * TURNS // 3, 10 * TURNS):
        values, loop = LOOPS[kind]()
        with watched(values, clock, store) as guard:
            done = 0 if kind == "steps" else guard.restore()
            turns = loop(guard, done)
            for number, _ in enumerate(turns):
                clock.advance(SLOW)
                if number >= until:
                    break
            turns.close()
            position = guard._position()
            assert (position.marked, position.misuse) == (True, "")
            if not guard._gate.place.dirty:
                guard.save()
    assert said(caplog) == []
