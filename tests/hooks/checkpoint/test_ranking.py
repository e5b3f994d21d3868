"""Which whole checkpoint a restore tries first, where some lack something, and who stands in for a rank that died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.catalog import WholeCheckpoint, whole_checkpoints
from spotguard.hooks.checkpoint.format.coverage import MergedTensor
from spotguard.hooks.checkpoint.format.manifest import LEVELS, Chunk, Level, private_name
from spotguard.hooks.checkpoint.ranking import EXTRAS_WORTH, MOMENTS_WORTH, counts, stand_ins, worth_it
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore


def wholes(*saved: tuple[int, Level], world: int = 2) -> list[WholeCheckpoint]:
    """Checkpoints of these steps and levels, the oldest first; no rank's state was another's."""
    store = FakeStore()
    for save, (step, level) in enumerate(saved):
        Save(step=step, save=save, level=level, world=world).write(store)
    found = list(whole_checkpoints(store, "run", levels=LEVELS))
    return [seeded(whole, {rank: rank for rank in range(world)}) for whole in found]


def seeded(whole: WholeCheckpoint, seeds: Mapping[int, int]) -> WholeCheckpoint:
    """Each rank that is there has generators of its own, in the state of its seed."""
    manifests, tensors = list(whole.manifests), dict(whole.tensors)
    for rank, seed in seeds.items():
        if rank in whole.missing:
            continue
        name = private_name(rank, f"rng#{rank}")  # numbers differ from rank to rank
        tensors[name] = MergedTensor(
            name, "uint8", (16,), "", [(rank, Chunk((0,), (16,), 0, 0, 16, 1000 + seed))]
        )
        state = {
            "scheduler": {"last_epoch": whole.name.step},
            "rng": {"torch": [{"$": "tensor", "name": name}]},
        }
        manifests[rank] = replace(manifests[rank], state=state)
    return replace(whole, manifests=tuple(manifests), tensors=tensors)


def order(newest_first: list[WholeCheckpoint], worth: int = EXTRAS_WORTH) -> list[tuple[int, str]]:
    return [(whole.name.step, whole.level) for whole in worth_it(iter(newest_first), worth)]


@pytest.mark.parametrize(
    ("ahead", "worth", "first"),
    [(100, 100, "full"), (101, 100, "partial-extras"), (1, 0, "partial-extras"), (7, 7, "full")],
)
def test_extras_are_worth_so_many_steps(
    ahead: int, worth: int, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """More than that it has to be newer. What is not taken is said, and how to take it."""
    found = wholes((50, "full"), (50 + ahead, "partial-extras"))
    assert order(found, worth)[0][1] == first
    assert len(order(found, worth)) == 2
    assert (first == "full") == (
        f"step {50 + ahead} was saved without the extras of rank 1, so a restore uses the full checkpoint of step 50: "
        f"guard.restore(step={50 + ahead}) restores the other one" in caplog.text
    )


def test_moments_are_worth_what_they_were() -> None:
    for ahead, first in ((MOMENTS_WORTH - 1, "full"), (MOMENTS_WORTH, "weights")):
        assert order(wholes((50, "full"), (50 + ahead, "weights")))[0][1] == first


def test_the_incomplete_checkpoint_that_loses_least_comes_first() -> None:
    """A newer one without moments costs more than an older one without extras."""
    saved: list[tuple[int, Level]] = [(10, "full"), (1500, "partial-extras"), (1600, "weights")]
    assert order(wholes(*saved)) == [(1500, "partial-extras"), (1600, "weights"), (10, "full")]
    assert order(wholes(*saved[1:])) == [(1500, "partial-extras"), (1600, "weights")]


def test_behind_a_full_one_that_was_damaged_the_others_are_held_against_the_next() -> None:
    """Both full ones are older by less than the extras are worth, and then by more."""
    found = wholes((10, "full"), (120, "full"), (150, "partial-extras"))
    assert order(found) == [(120, "full"), (150, "partial-extras"), (10, "full")]


def test_without_a_full_checkpoint_a_lower_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert order(wholes((10, "partial-extras"))) == [(10, "partial-extras")]
    assert caplog.text == ""


def test_extras_that_were_another_rank_s_too_are_worth_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """In the full checkpoint before: all ranks had one seed. By what their tensors hold, and not by their names."""
    with caplog.at_level(logging.WARNING):
        lower, full = (seeded(whole, {0: 3, 1: 3}) for whole in wholes((50, "full"), (51, "partial-extras")))
        first, second = worth_it(iter([lower, full]))
    assert (first.name.step, first.stand_ins, second.name.step) == (51, {1: 0}, 50)
    assert caplog.text == ""


def other_seed(whole: WholeCheckpoint) -> WholeCheckpoint:
    return seeded(whole, {0: 3, 1: 4, 2: 5})


def other_note(whole: WholeCheckpoint) -> WholeCheckpoint:
    alike = seeded(whole, {0: 3, 1: 3, 2: 3})
    last = alike.manifests[-1]
    return replace(
        alike,
        manifests=(*alike.manifests[:-1], replace(last, state={**last.state, "notes": {"whose": 2}})),
    )


@pytest.mark.parametrize("unlike", [other_seed, other_note])
def test_a_state_of_its_own_has_no_stand_in(unlike: Callable[[WholeCheckpoint], WholeCheckpoint]) -> None:
    lower, full = wholes((50, "full"), (51, "partial-extras"), world=3)
    assert stand_ins(lower, unlike(full)) == {}
    assert next(worth_it(iter([lower, unlike(full)]))).level == "full"


def test_the_stand_in_is_one_that_is_there_and_was_alike() -> None:
    """Not the first one, whose seed was another."""
    lower, full = wholes((50, "full"), (51, "partial-extras"), world=3)
    assert stand_ins(lower, seeded(full, {0: 8, 1: 3, 2: 3})) == {2: 1}


def test_another_world_says_nothing_of_who_was_alike() -> None:
    lower = wholes((51, "partial-extras"), world=3)[0]
    full = seeded(wholes((50, "full"))[0], {0: 3, 1: 3})
    assert stand_ins(lower, full) == {}


def test_a_tensor_that_no_rank_wrote_is_like_no_other() -> None:
    """Reading it will say what is wrong with it."""
    lower, full = wholes((50, "full"), (51, "partial-extras"))
    states: list[Mapping[str, Any]] = [
        {"rng": {"$": "tensor", "name": private_name(rank, f"gone#{rank}")}} for rank in range(2)
    ]
    manifests = tuple(replace(each, state=states[each.rank]) for each in full.manifests)
    assert stand_ins(lower, replace(full, manifests=manifests)) == {}


@pytest.mark.parametrize("ahead", [1, 999, 1000, 1001])
def test_weights_count_where_a_restore_takes_them(ahead: int) -> None:
    """As it was decided before they were committed, so it is when they are restored."""
    taken = order(wholes((50, "full"), (50 + ahead, "weights")))[0][1] == "weights"
    assert counts(50 + ahead, 50) == taken
    assert order(wholes((7, "weights")))[0] == (7, "weights")
    assert counts(7, -1)
