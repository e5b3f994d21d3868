"""Whatever a step is made of, all ranks save one, and go on from it as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import STEPS, restores, saved_together, straight
from tests.hooks.ranks.gang import Gang, event
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("training", "way", "rank", "phase"),
    [
        # Of step 4 the scaler skips the optimizer: nothing closes the gate but the boundary.
        pytest.param("scaled", "ddp", 0, "backward", id="before a step that the scaler skips"),
        pytest.param(
            "scaled",
            "ddp",
            1,
            "before boundary",
            id="in a step that the scaler skips",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "scaled", "fsdp", 1, "evaluation", id="after a step that the scaler skips", marks=pytest.mark.slow
        ),
        pytest.param("accumulated", "ddp", 0, "forward", id="at the first forward of a step"),
        pytest.param(
            "accumulated", "fsdp", 1, "backward", id="at the first backward of a step", marks=pytest.mark.slow
        ),
        pytest.param("closed", "ddp", 1, "optimizer", id="before a step with a closure"),
        pytest.param("closed", "ddp", 0, "backward", id="in a step with a closure", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_save_one_step_and_go_on_bit_for_bit(
    gang: Gang, training: str, way: str, rank: int, phase: str, folder: Path
) -> None:
    undisturbed, store = straight(gang, 2, way, folder, training=training), folder / "store"
    said = gang.play(2, way, store, event(rank, 4, phase), training=training)
    step = saved_together(gang, store, said)
    assert 4 <= step <= 6
    assert restores(gang, 2, way, store, training=training) == step
    then = gang.play(2, way, store, digests=True, total=STEPS, training=training)
    for mine, other in zip(then, undisturbed, strict=True):
        assert mine["digests"][str(STEPS)] == other["digests"][str(STEPS)]
        assert mine["losses"] == {at: loss for at, loss in other["losses"].items() if int(at) >= step}


@pytest.mark.parametrize(("rank", "phase"), few_fast([(0, "loading"), (1, "evaluation")]))
def test_a_rank_that_has_boundaries_only_is_gone_to(gang: Gang, rank: int, phase: str, folder: Path) -> None:
    """How the other one ends is its collective's affair: rank 1 parks at the boundary, and that one is behind it."""
    store = folder / "store"
    said = gang.play(2, "ddp", store, event(rank, 4, phase), training="some at boundaries")
    assert said[1]["ended"] == "preempted", gang.errors()
    assert said[0]["last"] == said[1]["last"] >= 4
    assert restores(gang, 2, "ddp", store, training="some at boundaries") == said[0]["last"]
