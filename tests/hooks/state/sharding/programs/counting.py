"""Collectives of one rank in a whole save: those of its training, and none besides.

Some ranks are in their step when a notice comes, and the others before theirs: these catch up. Then all go on to the next
change, and leave. Each has made the collectives of so many steps, as training makes them by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import spotguard
from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.guard import Guard

#: Completed steps, of some ranks, when the notice comes; all save the next.
BEFORE = 2
#: Seconds.
PATIENCE = 30.0

Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer]]


def collectives() -> int:
    """Made so far by this process in all its groups, whoever asked for them."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]


def of_training(make: Make, batch: Callable[[int], torch.Tensor]) -> list[int]:
    """Of each step, up to its optimizer and behind it, where nobody guards it."""
    model, optimizer = make()
    counts = [collectives()]
    optimizer.register_step_pre_hook(lambda *_: counts.append(collectives()))
    for number in range(BEFORE + 2):
        _train(model, optimizer, batch(number))
        counts.append(collectives())
    return [after - before for before, after in pairwise(counts)]


def only_its_own(make: Make, batch: Callable[[int], torch.Tensor], rank: int, folder: Path) -> None:
    """The first rank is in its step, the others are before theirs, and behind none of its collectives."""
    expected = of_training(make, batch)
    model, optimizer = make()
    guard = spotguard.register(f"file://{folder}", run_id="r", model=model, optimizer=optimizer)
    assert guard.restore() == 0
    counts = [collectives()]
    optimizer.register_step_pre_hook(lambda *_: counts.append(collectives()))  # behind the guard's own
    optimizer.register_step_post_hook(lambda *_: _meet_the_notice(guard, rank) if rank == 0 else None)
    try:
        for number in range(BEFORE + 2):
            model(batch(number)).square().mean().backward()
            if rank:
                _meet_the_notice(guard, rank)
            optimizer.step()
            optimizer.zero_grad()
            counts.append(collectives())
            guard.step()
    except spotguard.Preempted:
        counts.append(collectives())
    last = guard._checkpointer.last
    assert last is not None
    assert (last.step, guard._gate.place.completed) == (BEFORE + 1, BEFORE + 1)
    made = [after - before for before, after in pairwise(counts)]
    # Those of the step that nobody changed anything in, up to its optimizer, come last.
    assert made == expected[: 2 * BEFORE + 3], f"{made} were made, and {expected} in training"
    guard.close()


def _meet_the_notice(guard: Guard, rank: int) -> None:
    """Of the first rank, whose state is half-way to the next step; the others are to be held before they change theirs."""
    if guard._gate.place.completed != BEFORE:
        return
    if rank == 0:
        spotguard.testing.preempt(guard, PATIENCE)
    gate = guard._gate
    with (
        gate._changed
    ):  # the notice first and shut behind it, by whoever saves: between them training may end
        assert gate._changed.wait_for(
            lambda: guard._saver.has_notice and gate.place.shut is not Shut.OPEN, PATIENCE
        )


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
