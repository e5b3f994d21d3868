"""Ranks are killed at any call that they make for a save: what is committed is whole, and is restored bit for bit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.hooks.ranks.checking import restores, seeded
from tests.hooks.ranks.gang import PHASES, Event, Gang, Said, event, fate, until
from tests.hooks.ranks.machines import Machine
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Calls for a notice at step 4.
OBJECT, MANIFEST, MARKER = (f"put .*/0*4-.*{name}" for name in ("safetensors", r"-of-\d+\.json", "COMMIT"))
#: Calls that a rank makes from its restore to its end: one save by hand, and one for a notice.
CALLS = 40


def killed(
    gang: Gang,
    world: int,
    way: str,
    folder: Path,
    fates: Sequence[Event],
    *places: Event,
    hosted: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> dict[int, Said]:
    """A notice of a few seconds on the only machine, when each of the places is reached. What the survivors say."""
    with Machine(folder / "agent.sock") as machine:
        signs = [folder / f"reached-{number}.sign" for number in range(len(places))]
        reached = [
            event(each["rank"], each["step"], each["phase"], "reaches", sign=str(sign))
            for each, sign in zip(places, signs, strict=True)
        ]
        socket = {"SPOTGUARD_SOCKET": str(machine.socket)}
        store = folder / "store"
        gang.begin(
            world,
            way,
            store,
            *reached,
            fates=fates,
            saves=[2],
            total=30,
            hosted=hosted,
            env=socket,
            optimizers=2,
        )
        meanwhile()
        until(lambda: all(sign.exists() for sign in signs) or gang.dead(world))
        machine.notice(4.0)
        then()
        return gang.survivors(world)


def holds(gang: Gang, world: int, way: str, folder: Path, said: dict[int, Said]) -> int:
    """Nothing partial is taken, nothing that anybody took for committed is lost, and nobody is left waiting."""
    at = restores(gang, world, way, folder / "store", optimizers=2)
    for each in said.values():
        assert each["last"] <= at
        assert each["threads"] == []
    return at


@pytest.mark.parametrize(
    ("call", "after", "saved"),
    [
        (MANIFEST, False, False),
        (MANIFEST, True, True),
        (MARKER, False, True),
        *few_fast(
            [
                (OBJECT, False, False),
                (MARKER, True, True),
                ("add offers/2", True, False),
            ],
            0,
        ),
    ],
)
def test_a_shard_counts_from_when_its_manifest_is_there(
    gang: Gang, call: str, after: bool, saved: bool, folder: Path
) -> None:
    """Of two ranks one dies there, or whoever comes there."""
    mortal = [0, 1] if call == MARKER else [1]
    said = killed(
        gang, 2, "fsdp", folder, [fate(rank, call, after=after) for rank in mortal], event(0, 4, "loading")
    )
    assert len(said) < 2
    assert holds(gang, 2, "fsdp", folder, said) == (4 if saved else 2)


@pytest.mark.slow
def test_a_rank_dies_before_it_calls_and_the_other_one_calls_in_its_place(gang: Gang, folder: Path) -> None:
    """Its agent tells each rank, and the first one calls all: the other one is held until that one is dead."""
    held = folder / "held.sign"
    fates = [fate(1, "claim call/2"), fate(0, "claim call/2", sign=held)]

    def called() -> None:
        until(lambda: gang.gone(1) and held.exists())
        held.unlink()

    said = killed(gang, 2, "fsdp", folder, fates, event(0, 4, "loading"), then=called)
    assert list(said) == [0]
    assert holds(gang, 2, "fsdp", folder, said) == 2


def test_the_others_save_what_a_replica_held_that_died_before_it_offered(gang: Gang, folder: Path) -> None:
    """All stand on one step: without a word of the dead one, the others could not know up to which step to go on."""
    places = [event(rank, 4, "loading") for rank in range(3)]
    said = killed(gang, 3, "ddp", folder, [fate(1, "set offer/2")], *places)
    assert [each["last"] for each in said.values()] == [4, 4], gang.errors()
    assert holds(gang, 3, "ddp", folder, said) == 4


@pytest.mark.parametrize(
    "hosted", few_fast([False, True]), ids=["the job's store goes too", "the job's store is there"]
)
def test_a_save_by_hand_that_waits_for_a_dead_rank_ends_at_a_notice(
    gang: Gang, hosted: bool, folder: Path
) -> None:
    """It dies when the other one has done its part: who has not heard yet what is saved, and whose store is gone, waits for
    nobody."""

    def dies() -> None:
        until(lambda: any("00001-of-00002.json" in names for _, _, names in os.walk(folder / "store")))
        gang.signal(0, signal.SIGKILL)

    held = fate(0, OBJECT.replace("4-", "2-"), sign=folder / "held.sign")
    said = killed(gang, 2, "fsdp", folder, [held], event(0, 4, "loading"), hosted=hosted, meanwhile=dies)
    assert [each["ended"] for each in said.values()] == ["preempted"], gang.errors()
    assert holds(gang, 2, "fsdp", folder, said) == 0


def anywhere(gang: Gang, seed: int, folder: Path) -> None:
    """Any ranks die, each at any of its calls, and maybe none of them comes so far."""
    chance = random.Random(seed)
    way, world = chance.choice(
        [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4), ("tp_fsdp", 4)]
    )
    victims = chance.sample(range(world), chance.choice([1, 1, 1, 2, world]))
    fates = [fate(rank, "", chance.randrange(CALLS), after=chance.random() < 0.5) for rank in victims]
    place = event(chance.randrange(world), chance.randrange(2, 6), chance.choice(PHASES))
    said = killed(gang, world, way, folder, fates, place, hosted=chance.random() < 0.7)
    at = holds(gang, world, way, folder, said)
    by_hand = any(each.get("by hand") for each in said.values())
    assert at >= (2 if by_hand else 0), f"seed {seed}"


@pytest.mark.parametrize("seed", few_fast(range(4)), ids="seed-{}".format)
def test_committed_state_is_restored_wherever_a_rank_dies_in_the_save(
    gang: Gang, seed: int, folder: Path
) -> None:
    anywhere(gang, seed, folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", range(4, 304, 50), ids="seeds-from-{}".format)
def test_committed_state_is_restored_wherever_a_rank_dies_in_the_save_hundreds_of_times(
    gang: Gang, seeds: int, folder: Path
) -> None:
    for seed in range(seeds, seeds + 50):
        with seeded(seed, folder) as own:
            anywhere(gang, seed, own)
