"""Parameters that are frozen, or join the optimizer, in mid-run: what is saved is what there is by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import STEPS, marked, newest, saved_together, straight
from tests.hooks.ranks.gang import Gang, event

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: The state that is saved is planned once, at step 5; a parameter is frozen in step 6, and one joins in step 7.
WAYS = ["freezing ddp", "fsdp"]


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_has_changed_is_saved_whole_and_planned_anew_without_a_collective(
    gang: Gang, way: str, folder: Path
) -> None:
    undisturbed, store = straight(gang, 2, way, folder, training="changing"), folder / "store"
    counted = [event(rank, 8, "loading", "counts", least=8) for rank in range(2)]
    said = gang.play(2, way, store, event(1, 8, "loading"), *counted, training="changing")
    assert saved_together(gang, store, said) == 8
    for each in said:
        before, after = each["collectives"]
        assert after == before
    whole = newest(store)
    assert whole is not None
    # Weights, two moments and a count: also of who is frozen, and of who has just joined.
    names = {tensor.name for manifest in whole.manifests for tensor in manifest.tensors}
    assert len([name for name in names if "last.bias" in name or "first.bias" in name]) == 8
    then = gang.play(2, way, store, training="changed", digests=True, total=STEPS)
    for mine, other in zip(then, undisturbed, strict=True):
        assert mine["start"] == 8
        assert mine["digests"] == {at: digest for at, digest in other["digests"].items() if int(at) >= 8}
        assert mine["losses"] == {at: loss for at, loss in other["losses"].items() if int(at) >= 8}


@pytest.mark.parametrize(
    ("way", "noticed"), [pytest.param("freezing ddp", 0, marks=pytest.mark.soak), ("fsdp", 1)]
)
def test_a_model_that_some_rank_is_changing_just_now_is_saved_behind_that_step(
    gang: Gang, way: str, noticed: int, folder: Path
) -> None:
    """Rank 1 has one more group by then, and rank 0 has not: no step is to be had but the next one, of both."""
    undisturbed, store = straight(gang, 2, way, folder, training="changing"), folder / "store"
    places = ("loading", "joined")
    there = [event(rank, 7, place, "agreed") for rank, place in enumerate(places)]
    said = gang.play(2, way, store, event(noticed, 7, places[noticed]), *there, training="changing")
    assert saved_together(gang, store, said) == 8
    assert len(marked(store)) == 1
    then = gang.play(2, way, store, training="changed", digests=True, total=STEPS)
    for mine, other in zip(then, undisturbed, strict=True):
        assert mine["start"] == 8
        assert mine["digests"] == {at: digest for at, digest in other["digests"].items() if int(at) >= 8}
