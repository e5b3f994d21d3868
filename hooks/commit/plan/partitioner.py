"""The partitioner: which rank writes which objects of a state that several ranks hold.

It is a pure function of the tensors that each rank holds and of the ranks whose machine goes. No rank asks another.

Ranks that hold the same tensors are a group (equal `holders`). They plan these tensors alike, each by itself, so that each
has the same list of objects. Then each deals the objects out in turn: the next object goes to the holder with the fewest bytes
so far. A rank whose machine goes writes only tensors that no other rank holds.

No input differs between the holders of a group: no link's rate, no order of registration, no width that a rank has learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...checkpoint.tier import Tier
from .bin_packing import OBJECT_BYTES, PlannedObject, PlannedTensor, plan

_MIB = 2**20
#: Objects for each holder of a group, if that makes them neither small nor large. Shares differ by at most one object. So
#: with sixteen the slowest holder has a sixteenth more than its part; with four it was a quarter.
_EACH = 16


@dataclass(frozen=True, slots=True)
class RankRoles:
    """The roles that all ranks have agreed on for one save: which ranks leave, are absent, or write all that they hold."""

    #: Ranks whose machine goes.
    departing: frozenset[int] = frozenset()
    #: The ranks' plans differ, so no rank relies on another: each writes all that it holds.
    whole_each: bool = False
    #: Ranks that are absent: they write nothing, not even frozen tensors.
    absent: frozenset[int] = frozenset()


#: No rank leaves, and all ranks share the writing.
ALL_STAY = RankRoles()


def writes(holders: Sequence[int], rank: int) -> bool:
    """Return whether a rank takes part in writing the tensors of these holders."""
    return not holders or rank in holders


def group_of(holders: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the ranks that plan a tensor alike; () if this rank holds the tensor alone, and so writes it alone."""
    return () if holders == (rank,) else holders


def shared_target(nbytes: int, holders: Sequence[int]) -> int:
    """Return the largest size of an object, in bytes, for a group that holds `nbytes`.

    The size is a whole number of MiB, so that a few more bytes change nothing.
    """
    share = -(-nbytes // (_EACH * len(holders) * _MIB)) * _MIB
    return min(max(share, _MIB), OBJECT_BYTES)


def targets(
    items: Sequence[PlannedTensor], nbytes: Sequence[int], rank: int, alone: int, *, apart: bool = False
) -> dict[tuple[int, ...], int]:
    """Return the largest size of an object in bytes, by group. A group without bytes is left out.

    Args:
        nbytes: bytes of each item in memory. So objects have the same size whether moments are rounded or not.
        alone: the size for tensors that this rank holds alone.
        apart: the ranks' plans differ, and so may the bytes of a group. All groups get one size, which cuts equal tensors
            alike.
    """
    bytes_of: dict[tuple[int, ...], int] = {}
    for item, size in zip(items, nbytes, strict=True):
        if writes(item.holders, rank):
            group = group_of(item.holders, rank)
            bytes_of[group] = bytes_of.get(group, 0) + size
    sizes = {
        group: OBJECT_BYTES if apart else shared_target(size, group)
        for group, size in sorted(bytes_of.items())
        if group and size
    }
    return {(): alone, **sizes}


def plan_shares(
    items: Sequence[PlannedTensor], rank: int, sizes: dict[tuple[int, ...], int]
) -> tuple[PlannedObject, ...]:
    """Return the objects that this rank takes part in, tier by tier over all groups: the most valuable tier leaves first.

    Args:
        sizes: the result of `targets`.

    Raises:
        UsageError: a size cannot hold even one element and its header.
    """
    groups: dict[tuple[int, ...], list[int]] = {group: [] for group in sizes}
    for index, item in enumerate(items):
        if writes(item.holders, rank) and (group := group_of(item.holders, rank)) in groups:
            groups[group].append(index)
    objects: list[PlannedObject] = []
    for group, indices in groups.items():
        planned = plan(items, sizes[group], indices)
        objects += [replace(each, holders=group) for each in planned] if group else planned
    # The sort is stable: within a tier the order of the plan stays.
    return tuple(sorted(objects, key=lambda planned: planned.tier))


def share_of(objects: Sequence[PlannedObject], rank: int, roles: RankRoles) -> frozenset[int]:
    """Return the indices of the objects that this rank writes: those it holds alone, and its share of each group's."""
    if roles.whole_each:
        return frozenset(range(len(objects)))
    dealt = _DealtBytes()
    ours = []
    for index, planned in enumerate(objects):
        holders = planned.holders
        if not holders:
            ours.append(index)
            continue
        if planned.tier is Tier.FROZEN:
            # The object is most likely in the store already, and the rank that put it refers to it. So it keeps its owner,
            # even if that rank's machine goes.
            owner = dealt.deal("frozen", holders, holders, planned.size)
        else:
            there = [holder for holder in holders if holder not in roles.absent]
            staying = [holder for holder in there if holder not in roles.departing]
            owner = dealt.deal("", holders, staying or there or holders, planned.size)
        if owner in roles.absent:
            there = [holder for holder in holders if holder not in roles.absent]
            owner = dealt.deal("frozen, again", holders, there or holders, planned.size)
        if owner == rank:
            ours.append(index)
    return frozenset(ours)


class _DealtBytes:
    """The bytes that each holder of each group was given so far."""

    def __init__(self) -> None:
        self._loads: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}

    def deal(self, what: str, group: tuple[int, ...], among: Sequence[int], nbytes: int) -> int:
        """Give the object to the holder with the fewest bytes so far, the first of equals. Return that holder."""
        loads = self._loads.setdefault((what, group), dict.fromkeys(among, 0))
        owner = min(loads, key=loads.__getitem__)
        loads[owner] += nbytes
        return owner
