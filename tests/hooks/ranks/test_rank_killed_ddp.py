"""A replica died, and the others save: what it alone had is gone, and whoever restores hears of it; or nothing is saved, for
a complete checkpoint is as new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hooks.ranks.checking import an_hour_passes, marked, newest, outcomes, straight
from tests.hooks.ranks.gang import Gang, Said, event

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORLD = 3


def killed(gang: Gang, store: Path, rank: int, **scenario: Any) -> list[Said]:
    """This rank dies at step 4; then another one is given a notice. Returns what the others say."""
    dead, others = gang.pid(rank), [each for each in range(WORLD) if each != rank]
    gang.begin(
        WORLD,
        "ddp",
        store,
        event(rank, 4, "loading", "kill"),
        event(others[0], 4, "loading", "outlives", pid=dead),
        event(others[0], 4, "loading", seconds=5.0),
        *(event(each, 4, "loading", "noticed") for each in others),
        **{"training": "noted", **scenario},
    )
    said = gang.ended(others)
    assert [each["threads"] for each in said] == [[], []]
    return said


def restored(gang: Gang, store: Path, **scenario: Any) -> int:
    """All ranks restore one step, with the parameters and moments that an undisturbed run had there."""
    undisturbed = straight(gang, WORLD, "ddp", store.parent, training="noted")
    an_hour_passes(store)
    then = gang.play(WORLD, "ddp", store, total=0, **{"training": "noted", **scenario})
    start: int = then[0]["start"]
    for mine, other in zip(then, undisturbed, strict=True):
        assert mine["start"] == start, gang.errors()
        assert mine["digests"][str(start)] == other["digests"][str(start)], gang.errors()
    return start


def test_a_checkpoint_without_a_dead_ranks_extras_has_a_level_of_its_own(gang: Gang, folder: Path) -> None:
    """In the checkpoint and in the outcome; an older full one is worth more, unless the option says otherwise, and then each
    name that was another rank's is said."""
    store = folder / "store"
    for each in killed(gang, store, 2, saves=[2]):
        assert (each["last"], each["level"]) == (4, "partial-extras"), gang.errors()
    whole = newest(store)
    assert whole is not None
    assert (whole.name.step, whole.level, whole.missing) == (4, "partial-extras", (2,)), gang.errors()
    assert whole.manifests[2].state == {}
    (record,) = outcomes(store).values()
    assert (record["committed"], record["step"], record["level"]) == (True, 4, "partial-extras")
    assert record["reason"].startswith("no answer in time from rank 2 of 3: its extras are missing")

    assert restored(gang, store) == 2
    assert (
        "step 4 was saved without the extras of rank 2, so a restore uses the full checkpoint of step 2"
        in gang.errors()
    )

    assert restored(gang, store, env={"SPOTGUARD_EXTRAS_WORTH": "1"}) == 4
    said = gang.errors()
    assert "step 4 is restored without the extras of rank 2" in said
    assert said.count("rank 2 resumes with rank 0's notes: its own were not saved") == 1
    assert said.count(" resumes with rank ") == 1
    assert "rank 2 was gone when the other ranks saved: its own rng is lost" in said


@pytest.mark.slow
def test_nothing_is_saved_where_a_complete_checkpoint_is_as_new(gang: Gang, folder: Path) -> None:
    """Of this very step; the outcome says that it stands."""
    store = folder / "store"
    for each in killed(gang, store, 2, saves=[4]):
        assert (each["last"], each["level"]) == (4, "full"), gang.errors()
    assert [name.split("-")[0] for name in marked(store)] == ["000000004"]
    assert len(list((store / "r" / "checkpoints").iterdir())) == 1
    (record,) = outcomes(store).values()
    assert (record["committed"], record["step"], record["level"]) == (True, 4, "full")
    stands = "no answer in time from rank 2 of 3, and the complete checkpoint of step 4 is as new"
    assert record["reason"] == stands
    assert restored(gang, store) == 4
    assert " resumes with rank " not in gang.errors()


@pytest.mark.slow
def test_the_next_rank_keeps_the_record_where_the_first_one_died(gang: Gang, folder: Path) -> None:
    """Under a name of its own: it does not know how many the first one had written."""
    store = folder / "store"
    for each in killed(gang, store, 0, saves=[2], hosted=True):
        assert (each["last"], each["level"]) == (4, "partial-extras"), gang.errors()
    ((name, record),) = outcomes(store).items()
    assert (name, record["level"]) == ("0001-01-00001", "partial-extras")
    assert restored(gang, store, env={"SPOTGUARD_EXTRAS_WORTH": "0"}) == 4
    assert "rank 0 resumes with rank 1's notes" in gang.errors()


@pytest.mark.slow
def test_extras_that_all_ranks_had_alike_are_no_loss(gang: Gang, folder: Path) -> None:
    """No dict of their own, and one seed: in the full checkpoint before, each had what the others had."""
    store = folder / "store"
    killed(gang, store, 2, saves=[2], training="plain", seeded=True)
    assert restored(gang, store, training="plain") == 4
    said = gang.errors()
    alike = "its own were not saved, and were identical in the full checkpoint before"
    assert said.count(f"rank 2 resumes with rank 0's rng: {alike}") == 1
    assert "is lost" not in said
