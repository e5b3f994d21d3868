"""Checkpoints that no notice asks for, of all ranks: beside training and by hand; which of them all go on from;
and that none needs a collective, also where a notice asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import STEPS, marked, newest, restores, straight
from tests.hooks.ranks.gang import Gang, event, signs, until
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_the_first_ranks_checkpoints_are_everybodys_and_old_ones_go(gang: Gang, folder: Path) -> None:
    """Each is of the boundary after the next: the ranks have to agree on one that none of them has come to."""
    begins = [event(0, step, "evaluation", "background") for step in (1, 3, 5)]
    agreed = [event(0, step, "loading", "agreed") for step in (2, 4, 6)]
    ends = [event(rank, step, "loading", "saved", least=step) for rank in range(2) for step in (3, 5, 7)]
    said = gang.play(2, "fsdp", folder, *begins, *agreed, *ends, env={"SPOTGUARD_KEEP": "2"})
    assert [each["ended"] for each in said] == ["at its end"] * 2, gang.errors()
    assert said[0]["last"] == said[1]["last"] >= 6
    assert len(marked(folder)) == 2
    whole = newest(folder)
    assert whole is not None
    assert whole.name.step == said[0]["last"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_checkpoints_at_an_interval_follow_each_other_and_each_is_a_step_of_all_ranks(
    gang: Gang, way: str, folder: Path
) -> None:
    """The interval is over at each boundary; who trains waits now and then for what was begun there."""
    undisturbed, store = straight(gang, 3, way, folder), folder / "store"
    ends = [
        event(rank, step, "loading", "saved", least=step - 1) for rank in range(3) for step in (2, 4, 6, 8)
    ]
    settings = {"SPOTGUARD_EVERY": "0.001", "SPOTGUARD_KEEP": "3"}
    said = gang.play(3, way, store, *ends, env=settings, total=STEPS, digests=True)
    assert [each["ended"] for each in said] == ["at its end"] * 3, gang.errors()
    assert [each["losses"] for each in said] == [each["losses"] for each in undisturbed]
    kept = marked(store)
    assert (
        2 <= len(kept) <= 3
    )  # one that a busy machine gave up is none; what was before them is gone, to the last object
    assert {path.name for path in (store / "r" / "checkpoints").iterdir() if any(path.rglob("*.*"))} == set(
        kept
    )
    steps = [int(name.split("-")[0]) for name in kept]
    assert steps == sorted(steps)
    assert steps[-1] >= 5
    for step in steps:
        back = gang.play(3, way, store, step=step, total=0)
        for mine, other in zip(back, undisturbed, strict=True):
            assert mine["digests"] == {str(step): other["digests"][str(step)]}


@pytest.mark.parametrize("way", few_fast(["fsdp", "ddp"]))
def test_a_notice_right_behind_a_checkpoint_beside_training_is_saved(
    gang: Gang, way: str, folder: Path
) -> None:
    said = gang.play(2, way, folder, event(0, 4, "evaluation", "background"), event(0, 4, "evaluation"))
    assert [each["ended"] for each in said] == ["preempted"] * 2, gang.errors()
    whole = newest(folder)
    assert whole is not None
    assert [each["last"] for each in said] == [whole.name.step] * 2
    assert [each["threads"] for each in said] == [[]] * 2


def test_all_go_on_from_the_next_older_one_where_one_rank_finds_damage(gang: Gang, folder: Path) -> None:
    straight = gang.play(2, "fsdp", folder, digests=True, total=7, saves=[3, 6])
    back = gang.play(2, "fsdp", folder, step=3, total=4)
    assert [each["start"] for each in back] == [3, 3]
    newest_one = folder / "r" / "checkpoints" / marked(folder)[-1]
    of_the_second = max(newest_one.glob("00001-of-00002/*"), key=lambda path: path.stat().st_size)
    data = bytearray(of_the_second.read_bytes())
    data[len(data) // 2] ^= 1
    of_the_second.write_bytes(data)
    then = gang.play(2, "fsdp", folder, total=5)
    assert [each["start"] for each in then] == [3, 3], gang.errors()
    assert "damaged, trying the next older one: rank 1" in gang.errors()
    assert then[0]["digests"]["3"] == straight[0]["digests"]["3"]


def test_a_replica_that_has_drifted_is_named(gang: Gang, folder: Path) -> None:
    said = gang.play(
        2,
        "ddp",
        folder,
        event(1, 3, "loading", "drift"),
        event(0, 4, "evaluation", "background"),
        *(event(rank, 6, "loading", "saved", least=4) for rank in range(2)),
    )
    assert [each["ended"] for each in said] == ["at its end"] * 2, gang.errors()
    assert "replicas have drifted apart by step" in gang.errors()
    assert "first.weight" in gang.errors().partition("replicas have drifted apart by step")[2]


@pytest.mark.parametrize("way", few_fast(["fsdp", "ddp"]))
def test_a_notice_is_handled_where_every_collective_raises(gang: Gang, way: str, folder: Path) -> None:
    """Both stand in their loaders, and break all their groups before one of them is told."""
    with signs(folder) as sign:
        there = [sign(f"rank{rank}") for rank in range(2)]
        broken = [
            event(rank, 4, "loading", what, sign=str(path))
            for what in ("waits", "breaks its groups")
            for rank, path in enumerate(there)
        ]
        saved = [event(rank, 4, "loading", "saved", least=4) for rank in range(2)]
        gang.begin(2, way, folder, *broken, event(0, 4, "loading"), *saved)
        until(lambda: all(path.exists() for path in there))
        for path in there:
            path.unlink()
        said = gang.ended(range(2))
    assert [each["collectives"] for each in said] == ["all raise"] * 2
    assert [each["last"] for each in said] == [4, 4], gang.errors()
    assert restores(gang, 2, way, folder) == 4


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_no_group_sees_a_collective_while_a_notice_is_handled(gang: Gang, way: str, folder: Path) -> None:
    """Both training threads stand in their loaders from before the notice until the commit."""
    counted = [event(rank, 4, "loading", "counts", least=4) for rank in range(2)]
    said = gang.play(2, way, folder, event(0, 4, "loading"), *counted)
    assert [each["last"] for each in said] == [4, 4], gang.errors()
    assert len(marked(folder)) == 1
    for each in said:
        before, after = each["collectives"]
        assert before > 4  # those of training are counted
        assert after == before
