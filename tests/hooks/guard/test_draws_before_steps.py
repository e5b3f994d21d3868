"""Random numbers that a script draws between `restore()` and its loop over `guard.steps()`: at each start, while an uninterrupted run
has drawn there once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from spotguard.hooks.state.parts.rng import RngPart
from tests.fakes.passes import WIDTH, Loop, Rows, Script, said, unequal
from tests.fakes.training import seed

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


def reads_a_loader(loop: Loop) -> None:
    """An iterator that lives before the loop, and draws beside it."""
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    _draw()

    def endless() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = endless()
    _draw()
    for _ in loop.turns(8):
        loop.learn(next(batches) + _draw())


def counts_by_hand_behind_a_loop(loop: Loop) -> None:
    """A loop over steps first, and one that marks its boundaries itself."""
    loop.restore()
    _draw()
    _learn(loop, loop.turns(3))
    _draw()
    loop._by_hand = True
    while loop.done < 8:
        loop.learn(_draw())


def ends_with_a_loader(loop: Loop) -> None:
    loader = loop.wrap(DataLoader(Rows(), 4, shuffle=True))
    loop.restore(loader=loader)
    _draw()
    for _ in range(loader.epoch, 3):
        for _, rows in zip(range(99) if loop.guard is None else loop.guard.steps(), loader, strict=False):
            loop._by_hand = False
            loop.learn(rows + _draw())
            if loop.done == loop._until:
                loop.guard.step()
                loop._end()
        loop.loss_of(_draw())


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        draws,
        seeds,
        warms_up,
        validates_between_loops,
        seeds_between_loops,
        generators_in_a_dict,
        reads_a_loader,
        ends_with_a_loader,
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


def test_a_loop_that_begins_again_at_its_boundary_repeats_what_was_between() -> None:
    """As where `zip(guard.steps(), loader)` ends with its loader: a restart is in the first loop again, and draws behind it."""
    saved = RngPart("rng")
    saved.loop_goes_on(follows=True)
    saved.at_boundary()
    between = _draw()
    saved.loop_begins(follows=True, ends=False)
    wanted = _draw()
    part = _restored(saved)
    _draw()
    part.loop_begins(follows=True, ends=False)
    assert torch.equal(_draw(), between)
    part.loop_begins(follows=True, ends=False)
    assert torch.equal(_draw(), wanted)


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


def test_a_loop_that_is_left_early_goes_on_with_the_restored_numbers() -> None:
    def script(loop: Loop) -> None:
        loop.restore()
        _draw()
        if loop.guard is None:
            _learn(loop, iter(range(8)))
            return
        for _ in islice(loop.guard.steps(), 8 - loop.done):
            if loop.done == loop._until:
                loop._end()
            loop._by_hand = False
            loop.learn(_draw())

    assert unequal(script, (1, 3)) == []
