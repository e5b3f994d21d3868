"""A job of several ranks that was preempted goes on as if it had not been; on fewer or more ranks too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import STEPS, losses, marked, newest, saved_together, straight
from tests.hooks.ranks.gang import Gang, event
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("way", "world"),
    few_fast(
        [("ddp", 2), ("fsdp", 2), ("tp_fsdp", 4), ("ddp", 4), ("fsdp", 4), ("tp_fsdp", 2), ("hsdp", 4)], 2
    ),
)
def test_a_run_that_was_preempted_goes_on_bit_for_bit(gang: Gang, way: str, world: int, folder: Path) -> None:
    undisturbed = straight(gang, world, way, folder)
    store = folder / "preempted"
    first = gang.play(world, way, store, event(world - 1, 4, "forward"))
    step = saved_together(gang, store, first)
    assert len(marked(store)) == 1
    then = gang.play(world, way, store, digests=True, total=STEPS)
    assert gang.errors().count(f"spotguard: resumed from step {step} of run r in file://") == 1
    for rank in range(world):
        assert then[rank]["start"] == step
        assert then[rank]["digests"] == {
            at: digest for at, digest in undisturbed[rank]["digests"].items() if int(at) >= step
        }
        assert {**first[rank]["losses"], **then[rank]["losses"]} == undisturbed[rank]["losses"]


WAYS = [("tp_fsdp", "ddp", "fsdp"), ("fsdp", "fsdp", "fsdp"), ("ddp", "fsdp", "ddp")]


@pytest.mark.parametrize(
    "ways",
    few_fast([(each,) for each in WAYS]),
    ids="-".join,
)
def test_a_job_goes_on_with_fewer_ranks_and_with_more(
    gang: Gang, ways: tuple[str, str, str], folder: Path
) -> None:
    """Each begins with the very weights and moments with which the one before it ended."""
    undisturbed, store = straight(gang, 4, ways[0], folder), folder / "changing"
    four = gang.play(4, ways[0], store, event(2, 3, "backward"))
    at = saved_together(gang, store, four)
    two = gang.play(2, ways[1], store, total=7, saves=[7], digests=True)
    three = gang.play(3, ways[2], store, digests=True, total=STEPS)
    assert {each["start"] for each in two} == {at}
    assert {each["start"] for each in three} == {7}
    assert {each["digests"][str(at)] for each in two} == {undisturbed[0]["digests"][str(at)]}
    assert {each["digests"]["7"] for each in three} == {two[0]["digests"]["7"]}
    for said in (two, three):
        assert losses(said) == pytest.approx(
            {step: losses(undisturbed)[step] for step in losses(said)}, abs=1e-5
        )
    whole = newest(store)
    assert whole is not None
    assert whole.name.step == 7
