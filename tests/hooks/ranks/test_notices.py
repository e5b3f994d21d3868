"""A notice on any rank, at any moment: all ranks save one step, whole, and leave."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.hooks.ranks.checking import saved_together
from tests.hooks.ranks.gang import PHASES, Event, Gang, event
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def instants(chance: random.Random, world: int) -> list[Event]:
    """Of one rank, of several, or of all of them: at the same moment, or a little apart."""
    ranks = chance.sample(range(world), chance.choice([1, 1, 2, world]))
    step, phase = chance.randrange(5), chance.choice(PHASES)
    if chance.random() < 0.5:
        return [event(rank, step, phase) for rank in ranks]
    return [event(rank, step + chance.randrange(2), chance.choice(PHASES)) for rank in ranks]


def noticed(gang: Gang, seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    way, world = chance.choice([("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 4), ("tp_fsdp", 4)])
    events, store = instants(chance, world), folder / str(seed)
    # A rank that is still in `restore` has nothing to save, and then nobody saves: test_beside_other_work.
    said = gang.play(world, way, store, *events, total=100, optimizers=2, together=True)
    earliest = min(each["step"] for each in events)
    step = saved_together(gang, store, said)
    assert earliest <= step <= earliest + 2, f"seed {seed}: {events}"


@pytest.mark.parametrize("seed", few_fast(range(20), 5), ids="seed-{}".format)
def test_all_ranks_save_one_step_wherever_the_notice_meets_them(gang: Gang, seed: int, folder: Path) -> None:
    noticed(gang, seed, folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", range(20, 320, 50), ids="seeds-from-{}".format)
def test_all_ranks_save_one_step_hundreds_of_times(gang: Gang, seeds: int, folder: Path) -> None:
    for seed in range(seeds, seeds + 50):
        noticed(gang, seed, folder)
