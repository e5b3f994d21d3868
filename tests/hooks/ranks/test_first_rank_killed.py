"""The first rank dies, and the job's store with it: replicas save without it, as without any other rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.providers.stores.factory import open_store
from tests.hooks.ranks.checking import marked, newest, restores, seeded
from tests.hooks.ranks.gang import PHASES, Event, Gang, Said, event, fate, signs, until
from tests.hooks.ranks.machines import Machine
from tests.hooks.ranks.test_killed_in_the_save import CALLS, holds, killed
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Seconds of the notice.
WINDOW = 12.0
#: Calls in the second store's log.
SECOND_LOG = r"(call|offers?|decision|bell/\d+)/10{8}\d|once/"
#: Calls for a notice at step 4.
OBJECT, MANIFEST = r"put .*/0*4-.*safetensors", r"put .*/0*4-.*-of-\d+\.json"


def noticed(
    gang: Gang,
    world: int,
    way: str,
    folder: Path,
    fates: Sequence[Event],
    *,
    window: float = WINDOW,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Said]:
    """All ranks stand before step 5 of their forward, and their one machine gets a notice of `window` seconds. Returns what the
    survivors say, once `meanwhile` has returned."""
    with Machine(folder / "agent.sock") as machine:
        reached = [folder / f"reached-{rank}.sign" for rank in range(world)]
        gang.begin(
            world,
            way,
            folder / "store",
            *(event(rank, 4, "loading", "reaches", sign=str(sign)) for rank, sign in enumerate(reached)),
            fates=fates,
            saves=[2],
            total=30,
            optimizers=2,
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(lambda: all(each.exists() for each in reached))
        machine.notice(window)
        meanwhile()
        said = gang.survivors(world)
    assert 0 not in said
    assert all(each["threads"] == [] for each in said.values())
    return said


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("set offer/2", False),
        (OBJECT, False),
        *few_fast(
            [
                ("hear call/2$", False),
                ("set offer/2", True),
                ("hear call/2$", True),
                (OBJECT, True),
                (MANIFEST, False),
            ],
        ),
    ],
)
def test_replicas_save_without_the_rank_that_served_the_store(
    gang: Gang, call: str, after: bool, folder: Path
) -> None:
    """It dies before its vote, behind it, or in its upload: no two checkpoints of the step, and none with a hole."""
    said = noticed(gang, 3, "ddp", folder, [fate(0, call, after=after)])
    assert [(each["last"], each["level"]) for each in said.values()] == [(4, "partial-extras")] * 2, (
        gang.errors()
    )
    whole = newest(folder / "store")
    assert whole is not None
    assert (whole.name.step, whole.level, whole.missing) == (4, "partial-extras", (0,))
    assert [name.split("-")[0] for name in marked(folder / "store")].count("000000004") == 1
    assert restores(gang, 3, "ddp", folder / "store", optimizers=2) == 4


@pytest.mark.slow
def test_the_part_of_the_first_rank_counts_where_it_came_before_its_death(gang: Gang, folder: Path) -> None:
    """Its manifest is there, and the others have the decision: they complete that checkpoint, and vote no second time."""
    with signs(folder) as sign:
        held = [sign(f"held-{rank}") for rank in range(3)]

        def die() -> None:
            until(lambda: all(each.exists() for each in held))
            gang.end([0])
            for each in held:
                each.unlink()

        fates = [fate(0, MANIFEST, after=True, sign=held[0])]
        fates += [fate(rank, OBJECT, sign=held[rank]) for rank in (1, 2)]
        said = noticed(gang, 3, "ddp", folder, fates, window=5 * WINDOW, meanwhile=die)
    assert [(each["last"], each["level"]) for each in said.values()] == [(4, "full")] * 2, gang.errors()
    assert restores(gang, 3, "ddp", folder / "store", optimizers=2) == 4


@pytest.mark.parametrize("call", ["set offer/2", *few_fast([OBJECT, MANIFEST], 0)])
def test_nothing_is_saved_where_the_first_rank_held_a_shard(gang: Gang, call: str, folder: Path) -> None:
    """The checkpoint before counts, and nothing partial is marked."""
    said = noticed(gang, 2, "fsdp", folder, [fate(0, call)])
    assert [each["last"] for each in said.values()] == [2], gang.errors()
    assert [name.split("-")[0] for name in marked(folder / "store")] == ["000000002"]
    assert restores(gang, 2, "fsdp", folder / "store", optimizers=2) == 2


@pytest.mark.slow
def test_a_whole_replica_saves_without_the_first_rank_of_the_other(gang: Gang, folder: Path) -> None:
    said = noticed(gang, 4, "hsdp", folder, [fate(0, "set offer/2")])
    assert [each["last"] for each in said.values()] == [4] * 3, gang.errors()
    assert restores(gang, 4, "hsdp", folder / "store", optimizers=2) == 4


def anywhere(gang: Gang, seed: int, folder: Path) -> None:
    """The first rank dies at any of its calls, or another one does at any call in the second store, or both."""
    chance = random.Random(seed)
    way, world = chance.choice([("ddp", 2), ("ddp", 3), ("ddp", 4), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)])
    fates = [fate(0, "", chance.randrange(CALLS), after=chance.random() < 0.5)]
    if chance.random() < 0.4:
        victim = chance.randrange(1, world)
        fates.append(fate(victim, SECOND_LOG, chance.randrange(6), after=chance.random() < 0.5))
    place = event(chance.randrange(world), chance.randrange(2, 6), chance.choice(PHASES))
    said = killed(gang, world, way, folder, fates, place, hosted=False)
    at = holds(gang, world, way, folder, said)
    by_hand = any(each.get("by hand") for each in said.values())
    assert at >= (2 if by_hand else 0)
    found = [*whole_checkpoints(open_store(f"file://{folder / 'store'}"), "r", levels=LEVELS)]
    lacking = [(each.name.attempt, each.name.step) for each in found if each.missing]
    assert len(lacking) == len({*lacking}), "two checkpoints of one step, each without other ranks"


@pytest.mark.parametrize("seed", few_fast(range(6), 1), ids="seed-{}".format)
def test_committed_state_is_restored_wherever_the_first_rank_dies(
    gang: Gang, seed: int, folder: Path
) -> None:
    anywhere(gang, seed, folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", range(6, 206, 50), ids="seeds-from-{}".format)
def test_committed_state_is_restored_wherever_the_first_rank_dies_hundreds_of_times(
    gang: Gang, seeds: int, folder: Path
) -> None:
    for seed in range(seeds, seeds + 50):
        with seeded(seed, folder) as own:
            anywhere(gang, seed, own)
