"""Who writes what of what several hold: the same answer on every rank, and nothing of those that go that another holds."""

from __future__ import annotations

import random

import pytest

from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES, PlannedObject, PlannedTensor
from spotguard.hooks.commit.plan.partitioner import (
    ALL_STAY,
    RankRoles,
    plan_shares,
    share_of,
    shared_target,
    targets,
)

MIB = 2**20
ALL = (0, 1, 2, 3)


def replicas(
    holders: tuple[int, ...] = ALL, tier: Tier = Tier.WEIGHTS, name: str = "w"
) -> list[PlannedTensor]:
    """40 MiB that all of these hold."""
    return [
        PlannedTensor(f"{name}{index}", "float32", (1024, 1024), tier=tier, holders=holders)
        for index in range(10)
    ]


def planned(
    items: list[PlannedTensor], rank: int, alone: int = MIB, apart: bool = False
) -> tuple[PlannedObject, ...]:
    nbytes = [4 * item.sizes[0] * item.sizes[1] for item in items]
    return plan_shares(items, rank, targets(items, nbytes, rank, alone, apart=apart))


def dealt(items: list[PlannedTensor], roles: RankRoles) -> list[int]:
    """The bytes that each of four ranks writes."""
    sums = []
    for rank in ALL:
        objects = planned(items, rank)
        sums.append(sum(objects[index].size for index in share_of(objects, rank, roles)))
    return sums


def test_replicas_write_a_part_each() -> None:
    """All of it once, and nobody more than an object above the others."""
    sums = dealt(replicas(), ALL_STAY)
    largest = max(each.size for each in planned(replicas(), 0))
    assert max(sums) - min(sums) <= largest
    assert sum(sums) == sum(each.size for each in planned(replicas(), 0))


@pytest.mark.parametrize("departing", [{0}, {1, 3}, {0, 1, 2}])
def test_departing_ranks_write_nothing_that_others_hold(departing: set[int]) -> None:
    """Those that stay share it."""
    sums = dealt(replicas(), RankRoles(frozenset(departing)))
    assert {rank for rank, nbytes in enumerate(sums) if nbytes == 0} == departing
    assert sum(sums) == sum(dealt(replicas(), ALL_STAY))


def test_all_departing_ranks_share_the_write() -> None:
    """Every machine was noticed; and so it is for a group whose every holder is among those that go."""
    assert dealt(replicas(), RankRoles(frozenset(ALL))) == dealt(replicas(), ALL_STAY)
    pair = dealt(replicas((0, 1)), RankRoles(frozenset({0, 1})))
    assert all(pair[:2])
    assert pair[2:] == [0, 0]


def test_frozen_tensors_keep_their_writer() -> None:
    """It is in the store since the first checkpoint, and who put it refers to it: who goes has nothing to send either way."""
    frozen = replicas(tier=Tier.FROZEN)
    assert dealt(frozen, RankRoles(frozenset({2}))) == dealt(frozen, ALL_STAY)
    assert all(dealt(frozen, ALL_STAY))


def test_an_absent_rank_writes_nothing() -> None:
    """Not even what nobody trains, and not where all who are there go: of that the others keep what they had."""
    everybody_goes = dealt(replicas(), RankRoles(frozenset(ALL), absent=frozenset({1})))
    assert everybody_goes[1] == 0
    assert all(everybody_goes[rank] for rank in (0, 2, 3))
    frozen = planned(replicas(tier=Tier.FROZEN), 0)
    roles = RankRoles(frozenset({2}), absent=frozenset({1}))
    before, after = ([share_of(frozen, rank, each) for rank in ALL] for each in (ALL_STAY, roles))
    assert not after[1]
    assert frozenset().union(*after) == set(range(len(frozen)))
    assert all(after[rank] > before[rank] for rank in (0, 2, 3))


def test_private_state_is_written_by_its_holder() -> None:
    """Also by one that goes: nobody else has it."""
    own = [
        PlannedTensor("@2/rng", "float32", (1024, 1024)),
        PlannedTensor("b", "float32", (1024, 1024), holders=(2,)),
    ]
    objects = planned(own, 2)
    assert share_of(objects, 2, RankRoles(frozenset({2}))) == set(range(len(objects)))
    assert {each.holders for each in objects} == {()}


def test_a_tensor_of_another_writer_is_planned_nowhere_else() -> None:
    """Buffers that one rank broadcasts to the others."""
    assert planned([PlannedTensor("b", "float32", (1024, 1024), holders=(0,))], 1) == ()


def test_in_what_order_a_rank_lists_its_tensors_does_not_matter() -> None:
    """Nor how many it has beside them, nor the width that it has learnt."""
    ours, theirs = [*replicas(), *replicas((1, 3), name="pair")], replicas()
    theirs.append(PlannedTensor("own", "float32", (8192, 1024)))
    random.Random(5).shuffle(theirs)

    def shared(items: list[PlannedTensor], rank: int, alone: int) -> list[tuple[bytes, int, list[str]]]:
        return [
            (each.header, each.size, [items[piece.item].name for piece in each.pieces])
            for each in planned(items, rank, alone)
            if each.holders == ALL
        ]

    assert shared(ours, 1, MIB) == shared(theirs, 2, 16 * MIB) != []


def test_the_most_valuable_objects_leave_first_whoever_holds_them() -> None:
    """No moment of one group goes before the weights of another."""
    items = [
        *replicas((0, 1), Tier.MOMENTS, "m"),
        *replicas(ALL, Tier.WEIGHTS, "w"),
        PlannedTensor("own", "float32", (1024, 1024), tier=Tier.MOMENTS),
        *replicas(ALL, Tier.FROZEN, "f"),
    ]
    tiers = [each.tier for each in planned(items, 0)]
    assert tiers == sorted(tiers)
    assert {each.holders for each in planned(items, 0)} == {(), (0, 1), ALL}


def test_objects_of_a_group_are_a_few_for_each_holder() -> None:
    """Neither so many that each is small, nor one that holds up a rank while the others wait."""
    assert shared_target(100 * MIB, ALL) == 2 * MIB
    assert shared_target(1000, (0, 1)) == MIB
    assert shared_target(2**40, (0, 1)) == OBJECT_BYTES


def test_ranks_whose_plans_differ_cut_what_both_hold_alike() -> None:
    """One has tensors that the other lacks, so its group has other bytes: the boxes of a tensor are the same all the same, and
    both of them write all of it."""
    large = PlannedTensor("w", "float32", (40, MIB), holders=ALL)
    more = [PlannedTensor(f"m{index}", "float32", (64, MIB), holders=ALL) for index in range(3)]

    def boxes(items: list[PlannedTensor], apart: bool) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        objects = planned(items, 0, apart=apart)
        assert share_of(objects, 3, RankRoles(whole_each=True)) == set(range(len(objects)))
        return {
            (piece.offsets, piece.sizes)
            for each in objects
            for piece in each.pieces
            if items[piece.item].name == "w"
        }

    assert boxes([large], apart=True) == boxes([large, *more], apart=True)
    assert boxes([large], apart=False) != boxes([large, *more], apart=False)
