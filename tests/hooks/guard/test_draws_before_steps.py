"""Random numbers that a script draws between `restore()` and its loop over `guard.steps()`: at each start, while an uninterrupted run
has drawn there once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from spotguard.hooks.state.parts.rng import RngPart
from spotguard.providers.errors import CheckpointError, StateError
from tests.fakes.passes import WIDTH, Loop, Rows, Script, said, unequal
from tests.fakes.store import FakeStore
from tests.fakes.training import seed
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

_CUTS = (1, 4, 5, 6)


def _draw() -> torch.Tensor:
    """Draw from each global generator."""
    return torch.randn(4, WIDTH) * (1 + random.random() + np.random.rand())


def _learn(loop: Loop, turns: Iterator[int]) -> None:
    for _ in turns:
        loop.learn(_draw())


def draws(loop: Loop) -> None:
    loop.restore()
    for _ in range(3):
        _draw()
    _learn(loop, loop.turns(8))


def seeds(loop: Loop) -> None:
    loop.restore()
    seed(77)
    _learn(loop, loop.turns(8))


def warms_up(loop: Loop) -> None:
    """The model with dropout, in training mode, as compiling it needs."""
    loop.restore()
    loop.loss_of(torch.ones(4, WIDTH))
    _learn(loop, loop.turns(8))


def validates_between_loops(loop: Loop) -> None:
    loop.restore()
    _draw()
    for end in (2, 5, 8):
        _learn(loop, loop.turns(end))
        loop.loss_of(_draw())


def seeds_between_loops(loop: Loop) -> None:
    loop.restore()
    for end in (3, 5, 8):
        seed(end)
        _learn(loop, loop.turns(end))


def generators_in_a_dict(loop: Loop) -> None:
    numbers, noise = np.random.default_rng(3), torch.Generator().manual_seed(4)
    loop.restore(notes={"numpy": {"rng": numbers}, "all": [noise]})
    for end in (3, 8):
        numbers.random(5)
        torch.randn(5, generator=noise)
        for _ in loop.turns(end):
            loop.learn(torch.randn(4, WIDTH, generator=noise) * numbers.random())


def counts_epochs_by_steps(loop: Loop) -> None:
    """A restart begins with the epoch of its step, and draws for it."""
    loop.restore()
    for epoch in range(loop.done // 4, 2):
        seed(epoch)
        _draw()
        _learn(loop, loop.turns(4 * epoch + 4))


def replaces_a_generator(loop: Loop) -> None:
    notes = {"noise": torch.Generator().manual_seed(4)}
    loop.restore(notes=notes)
    notes["noise"] = torch.Generator().manual_seed(5)
    for _ in loop.turns(8):
        loop.learn(torch.randn(4, WIDTH, generator=notes["noise"]))


def counts_by_hand_behind_a_loop(loop: Loop) -> None:
    """A loop over steps first, and one that marks its boundaries itself."""
    loop.restore()
    _draw()
    _learn(loop, loop.turns(3))
    _draw()
    loop._by_hand = True
    while loop.done < 8:
        loop.learn(_draw())


def saves_each_epoch(loop: Loop) -> None:
    """The loop without an end is over where its loader is."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    loop._by_hand = False
    for _ in range(loader.epoch, 3):
        for _, rows in zip(range(99) if loop.guard is None else loop.guard.steps(), loader, strict=False):
            loop.learn(rows + _draw())
        loop._end()


def seeds_each_epoch(loop: Loop) -> None:
    """And leaves its loop by a break."""
    loop.restore()
    loop._by_hand = False
    for epoch in range(loop.done // 4, 3):
        seed(epoch)
        for number in range(loop.done, 99) if loop.guard is None else loop.guard.steps():
            loop.learn(_draw())
            if number + 1 == 4 * epoch + 4:
                if loop.guard is not None:
                    loop.guard.step()
                break
        loop._end()


def begins_its_pass_in_the_loop(loop: Loop) -> None:
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    batches = iter(loader)
    for _ in loop.turns(12):
        try:
            rows = next(batches)
        except StopIteration:
            loop._end()
            batches = iter(loader)
            rows = next(batches)
        loop.learn(rows + _draw())


@pytest.mark.parametrize("twice", few_fast([True, False]))
@pytest.mark.parametrize(
    "script",
    [
        draws,
        seeds,
        warms_up,
        validates_between_loops,
        seeds_between_loops,
        generators_in_a_dict,
        counts_epochs_by_steps,
        replaces_a_generator,
    ],
)
def test_draws_before_a_loop_over_steps_move_no_step(
    script: Script, twice: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert unequal(script, _CUTS, twice) == []
    assert said(caplog) == []


def _begun() -> RngPart:
    """At a boundary, behind draws, and at the beginning of a loop."""
    part = RngPart("rng")
    part.at_boundary()
    _draw()
    part.loop_begins(follows=True, ends=False)
    return part


def _restored(saved: RngPart, *, own: bool = True) -> RngPart:
    seed(9)
    part = RngPart("rng")
    part.targets(saved.tree())
    part.put_back(saved.tree())
    part.arrived(own=own)
    return part


def test_a_save_behind_the_beginning_of_a_loop_has_its_numbers() -> None:
    """A notice may come before the first step, and its save is of the boundary before the draws."""
    saved = _begun()
    wanted = _draw()
    part = _restored(saved)
    _draw()
    part.loop_begins(follows=True, ends=False)
    assert torch.equal(_draw(), wanted)


def test_a_save_before_the_beginning_of_a_loop_has_those_before_the_draws() -> None:
    saved = RngPart("rng")
    saved.at_boundary()
    wanted = [_draw(), _draw()]
    part = _restored(saved)
    drawn = _draw()
    part.loop_begins(follows=True, ends=False)
    assert torch.equal(drawn, wanted[0])
    assert torch.equal(_draw(), wanted[1])


def test_a_save_at_the_end_of_a_loop_has_the_numbers_of_what_follows_it() -> None:
    saved = RngPart("rng")
    saved.loop_goes_on(follows=False)
    saved.at_boundary()
    wanted = _draw()
    part = _restored(saved)
    _draw()  # before the loop that has nothing left to do
    part.loop_begins(follows=False, ends=True)
    assert torch.equal(_draw(), wanted)
    part.loop_begins(follows=True, ends=False)
    assert not torch.equal(_draw(), wanted)


def test_the_loop_of_another_run_counts_for_nothing() -> None:
    saved = _begun()
    part = _restored(saved, own=False)
    _draw()
    wanted = random.getstate(), torch.get_rng_state().tolist()
    part.loop_begins(follows=True, ends=False)
    assert (random.getstate(), torch.get_rng_state().tolist()) == wanted


def test_a_loop_by_hand_behind_one_over_steps_goes_on_with_the_restored_numbers() -> None:
    """Cut in the first one; the second one draws before itself, as its page forbids."""
    assert unequal(counts_by_hand_behind_a_loop, (1, 2)) == []


@pytest.mark.parametrize(
    ("script", "cuts"),
    [(saves_each_epoch, (5, 10)), (seeds_each_epoch, (4, 8)), (begins_its_pass_in_the_loop, (5, 10))],
)
def test_draws_of_a_loop_behind_a_save_come_again(script: Script, cuts: tuple[int, ...]) -> None:
    assert unequal(script, cuts) == []


def test_a_save_at_an_error_in_the_loop_has_the_numbers_of_its_step() -> None:
    """The loop is closed before the error is handled."""
    store, ends = FakeStore(), []
    for until in (3, -1):
        loop = Loop(store)
        loop.restore()
        _draw()
        try:
            for number in loop.guard.steps(6):
                loop._by_hand = False
                if number == until:
                    raise ZeroDivisionError
                loop.learn(_draw())
        except ZeroDivisionError:
            assert loop.guard._saver.background()
        finally:
            loop._open.__exit__(None, None, None)
        ends.append(loop.losses)
    plain = Loop(None)
    plain.restore()
    _draw()
    for _ in range(6):
        plain.learn(_draw())
    assert {**ends[0], **ends[1]} == plain.losses
    assert min(ends[1]) == 3


@pytest.mark.parametrize(
    "drawn",
    [{"torch": torch.zeros(3, dtype=torch.uint8)}, {"numpy": {"bit_generator": "MT19937", "state": {}}}],
    ids=str,
)
def test_a_state_of_a_loop_that_no_generator_takes_is_refused_in_words(drawn: dict[str, Any]) -> None:
    part = RngPart("rng")
    part.at_boundary()
    tree = part.tree() | {"loop": {"goes on": False, "drawn": {"global": drawn, "registered": {}}}}

    def resume() -> None:
        part.targets(tree)
        part.put_back(tree)
        part.arrived(own=True)
        part.loop_begins(follows=True, ends=False)

    with pytest.raises((CheckpointError, StateError), match="rng: a generator"):
        resume()
