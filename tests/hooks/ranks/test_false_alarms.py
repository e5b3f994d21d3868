"""A notice that is taken back, a drill that is over: all ranks go on, as if there had been none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import STEPS, marked, straight
from tests.hooks.ranks.gang import Event, Gang, event
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def goes_on_as_if_nothing_had_been(gang: Gang, way: str, store: Path, *events: Event) -> None:
    """All its steps, each as in a run in which nothing happens."""
    undisturbed = straight(gang, 2, way, store)
    said = gang.play(2, way, store / "disturbed", *events, digests=True, total=STEPS)
    assert [each["ended"] for each in said] == ["at its end"] * 2, gang.errors()
    assert [each["threads"] for each in said] == [[]] * 2
    for rank in range(2):
        assert said[rank]["losses"] == undisturbed[rank]["losses"]
        assert said[rank]["digests"][str(STEPS)] == undisturbed[rank]["digests"][str(STEPS)]


@pytest.mark.parametrize(("way", "drill"), [("ddp", True), ("fsdp", False)])
def test_a_notice_that_is_withdrawn_after_the_commit_leaves_a_checkpoint_and_no_other_trace(
    gang: Gang, way: str, drill: bool, folder: Path
) -> None:
    goes_on_as_if_nothing_had_been(
        gang,
        way,
        folder,
        event(0, 4, "loading", "withdrawn when saved", id="n"),
        event(0, 4, "forward", "notice", id="n", drill=drill),
    )
    assert len(marked(folder / "disturbed")) == 1


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "when all have heard"])
@pytest.mark.parametrize(("way", "drill"), few_fast([("ddp", False), ("fsdp", True)]))
def test_a_notice_that_is_withdrawn_before_the_commit_leaves_no_trace(
    gang: Gang, way: str, drill: bool, at_once: bool, folder: Path
) -> None:
    """It comes in the middle of its rank's step, which holds the save up for as long."""
    preemption = {"id": "n", "drill": drill, "at once": at_once}
    goes_on_as_if_nothing_had_been(
        gang, way, folder, event(0, 4, "before boundary", "false alarm", **preemption)
    )
    assert marked(folder / "disturbed") == []
