"""Ranks are killed while they restore, and while they save beside training: what was committed before is restored, bit for
bit, or what has become whole since. With one of them gone the launcher ends the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.format.keys import CheckpointName
from tests.hooks.ranks.checking import marked, restores, seeded
from tests.hooks.ranks.gang import Gang, Said, event, fate, until

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WAYS = [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4), ("tp_fsdp", 4)]
#: Calls that a rank makes in its restore, and in two checkpoints beside training.
RESTORE, BESIDE = 22, 50
#: Steps behind which checkpoints are called for.
BEGUN = (3, 6)

#: Returns the least that there is afterwards, and how often the launcher lost a rank.
Play = Callable[[Gang, random.Random, str, int, Path], tuple[int, int]]


def ends(gang: Gang, world: int) -> list[Said]:
    """What all ranks say; nothing where one was killed: the launcher kills the rest."""
    until(lambda: gang.dead(world) or gang.said(range(world)))
    if gang.dead(world):
        gang.end(range(world))
        return []
    return gang.ended(range(world))


def in_restore(gang: Gang, chance: random.Random, way: str, world: int, store: Path) -> tuple[int, int]:
    """Any ranks, and once more, when the next ones restore."""
    gang.play(world, way, store, saves=[2, 4], total=4)
    killed = 0
    for _ in range(2):
        victims = chance.sample(range(world), chance.choice([1, 1, 2, world]))
        fates = [fate(rank, "", chance.randrange(RESTORE), after=chance.random() < 0.5) for rank in victims]
        gang.begin(world, way, store, fates=fates, total=4, from_restore=True)
        killed += not ends(gang, world)
    return 4, killed


def beside_training(gang: Gang, chance: random.Random, way: str, world: int, store: Path) -> tuple[int, int]:
    """Any ranks, or none that gets so far. Two checkpoints are begun, and the first one's end is waited for."""
    victims = chance.sample(range(world), chance.choice([1, 1, 2, world]))
    fates = [fate(rank, "", chance.randrange(BESIDE), after=chance.random() < 0.5) for rank in victims]
    begun = [event(0, step, "evaluation", "background") for step in BEGUN]
    waits = [event(rank, 5, "evaluation", "saved", least=BEGUN[0] + 1) for rank in range(world)]
    gang.begin(
        world, way, store, *begun, *waits, fates=fates, saves=[2], total=9, env={"SPOTGUARD_KEEP": "2"}
    )
    said = ends(gang, world)
    return min((each["last"] for each in said), default=0), not said


def played(gang: Gang, play: Play, seed: int, folder: Path) -> int:
    """How often one was killed; what was committed is there."""
    chance = random.Random(seed)
    way, world = chance.choice(WAYS)
    least, killed = play(gang, chance, way, world, folder / "store")
    names = map(CheckpointName.parse, marked(folder / "store"))
    least = max([least, *(name.step for name in names if name)])
    assert restores(gang, world, way, folder / "store") >= least, f"seed {seed}"
    return killed


@pytest.mark.parametrize("play", [in_restore, beside_training])
@pytest.mark.parametrize("seed", range(1), ids="seed-{}".format)
def test_committed_state_is_restored_whichever_rank_dies(
    gang: Gang, play: Play, seed: int, folder: Path
) -> None:
    assert played(gang, play, seed, folder) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("play", [in_restore, beside_training])
@pytest.mark.parametrize("seeds", range(1, 121, 30), ids="seeds-from-{}".format)
def test_committed_state_is_restored_whichever_rank_dies_a_hundred_times(
    gang: Gang, play: Play, seeds: int, folder: Path
) -> None:
    killed = 0
    for seed in range(seeds, seeds + 30):
        with seeded(seed, folder) as own:
            killed += played(gang, play, seed, own)
    assert killed >= 20
