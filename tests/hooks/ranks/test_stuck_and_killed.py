"""A rank that does not go on, or is gone: what the others can save, they save, and everybody comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, newest, restores
from tests.hooks.ranks.gang import Gang, event

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_rank_whose_loader_never_returns_is_saved_with_the_others(
    gang: Gang, way: str, folder: Path
) -> None:
    said = gang.play(2, way, folder, event(1, 4, "loading", "stuck"), event(0, 4, "loading"))
    assert [each["last"] for each in said] == [4, 4], gang.errors()
    assert said[0]["ended"] == "preempted"
    whole = newest(folder)
    assert whole is not None
    assert whole.name.step == 4
    assert restores(gang, 2, way, folder) == 4


def killed(gang: Gang, way: str, store: Path) -> None:
    """The last of three ranks dies, then the first is given a notice; the others stand at one step."""
    dead = gang.pid(2)
    gang.begin(
        3,
        way,
        store,
        event(2, 4, "loading", "kill"),
        event(0, 4, "loading", "outlives", pid=dead),
        event(0, 4, "loading", seconds=5.0),
        event(0, 4, "loading", "noticed"),
        event(1, 4, "loading", "noticed"),
        saves=[2],
    )
    for each in gang.ended([0, 1]):
        assert each["threads"] == []


def test_the_others_save_without_a_replica_that_was_killed(gang: Gang, folder: Path) -> None:
    killed(gang, "ddp", folder)
    whole = newest(folder)
    assert whole is not None
    assert whole.name.step == 4, gang.errors()
    assert restores(gang, 3, "ddp", folder) == 4


def test_nothing_is_committed_without_a_shard_that_was_killed(gang: Gang, folder: Path) -> None:
    killed(gang, "fsdp", folder)
    assert "nobody else holds the state of rank" in gang.errors()
    assert len(marked(folder)) == 1
    assert restores(gang, 3, "fsdp", folder) == 2


def test_a_window_that_is_far_too_short_leaves_the_previous_checkpoint(gang: Gang, folder: Path) -> None:
    """Both ranks stay in the middle of a step until the deadline is over, and the agent has them leave."""
    said = gang.play(
        2,
        "fsdp",
        folder,
        event(0, 4, "before boundary", "notice", id="n", drill=False, seconds=0.1),
        *(event(rank, 4, "before boundary", "told to leave", id="n") for rank in range(2)),
        saves=[2],
    )
    assert [each["ended"] for each in said] == ["preempted"] * 2, gang.errors()
    assert [each["threads"] for each in said] == [[]] * 2
    assert [each["last"] for each in said] == [2, 2]
    assert len(marked(folder)) == 1
    assert restores(gang, 2, "fsdp", folder) == 2
