"""Who writes what of a state that several ranks hold: a pure function of what is held and of who goes. Nobody is asked.

Ranks that hold the same tensors (a group: equal `holders`) plan them alike, by themselves, so that each has the same list
of objects for them, and deal these out: in turn, to whoever has the least so far. A rank whose machine goes writes only
what no other holds. In all of it nothing enters that differs between the holders of a group: no link's rate, no order in
which tensors were registered, no width that a rank has learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...state.tensor_item import Tier
from .bin_packing import OBJECT_BYTES, PlannedObject, PlannedTensor, plan

_MIB = 2**20
#: So many objects for each holder of a group, where that makes them neither small nor large. Shares differ by an object at
#: most, so that with sixteen the slowest has a sixteenth more than its part; with four it was a quarter.
_EACH = 16


@dataclass(frozen=True, slots=True)
class RankRoles:
    """What all ranks have agreed on for one save."""

    #: Ranks whose machine goes.
    departing: frozenset[int] = frozenset()
    #: The ranks' plans differ: nobody relies on another, each writes all that it holds.
    whole_each: bool = False
    #: Ranks that are not there: they write nothing, not even what nobody trains.
    absent: frozenset[int] = frozenset()


#: Nobody goes, and all share.
ALL_STAY = RankRoles()


def writes(holders: Sequence[int], rank: int) -> bool:
    """Whether a rank has any part in the writing of what these hold."""
    return not holders or rank in holders


def group_of(holders: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The ranks that plan a tensor alike; () for what this one holds, and writes, alone."""
    return () if holders == (rank,) else holders


def shared_target(nbytes: int, holders: Sequence[int]) -> int:
    """Bytes of an object at most, of a group that holds so many: whole MiB, so that a few bytes more change nothing."""
    share = -(-nbytes // (_EACH * len(holders) * _MIB)) * _MIB
    return min(max(share, _MIB), OBJECT_BYTES)


def targets(
    items: Sequence[PlannedTensor], nbytes: Sequence[int], rank: int, alone: int, *, apart: bool = False
) -> dict[tuple[int, ...], int]:
    """The size of objects, by group; a group without bytes is left out.

    Args:
        nbytes: of each item as it lies in memory: rounded or not, a state has objects of one size.
        alone: for what this rank holds alone.
        apart: plans differ, so that bytes of a group do too: one size for all, by which equal tensors are cut alike.
    """
    held: dict[tuple[int, ...], int] = {}
    for item, size in zip(items, nbytes, strict=True):
        if writes(item.holders, rank):
            group = group_of(item.holders, rank)
            held[group] = held.get(group, 0) + size
    sizes = {
        group: OBJECT_BYTES if apart else shared_target(size, group)
        for group, size in sorted(held.items())
        if group and size
    }
    return {(): alone, **sizes}


def plan_shares(
    items: Sequence[PlannedTensor], rank: int, sizes: dict[tuple[int, ...], int]
) -> tuple[PlannedObject, ...]:
    """The objects for all that this rank has a part in, tier by tier over all groups: what is worth most leaves first.

    Args:
        sizes: as `targets` says.

    Raises:
        UsageError: as `plan`.
    """
    groups: dict[tuple[int, ...], list[int]] = {group: [] for group in sizes}
    for index, item in enumerate(items):
        if writes(item.holders, rank) and (group := group_of(item.holders, rank)) in groups:
            groups[group].append(index)
    objects: list[PlannedObject] = []
    for group, indices in groups.items():
        planned = plan(items, sizes[group], indices)
        objects += [replace(each, holders=group) for each in planned] if group else planned
    # Stable: within a tier as they were planned.
    return tuple(sorted(objects, key=lambda planned: planned.tier))


def share_of(objects: Sequence[PlannedObject], rank: int, roles: RankRoles) -> frozenset[int]:
    """The objects that this rank writes, by index: those it holds alone, and its share of each group's."""
    if roles.whole_each:
        return frozenset(range(len(objects)))
    workers = _Hands()
    ours = []
    for index, planned in enumerate(objects):
        holders = planned.holders
        if not holders:
            ours.append(index)
            continue
        if planned.tier is Tier.FROZEN:
            # It is in the store already, most likely, and whoever put it refers to it: it keeps its owner, whoever goes.
            owner = workers.deal("frozen", holders, holders, planned.size)
        else:
            there = [holder for holder in holders if holder not in roles.absent]
            staying = [holder for holder in there if holder not in roles.departing]
            owner = workers.deal("", holders, staying or there or holders, planned.size)
        if owner in roles.absent:
            there = [holder for holder in holders if holder not in roles.absent]
            owner = workers.deal("frozen, again", holders, there or holders, planned.size)
        if owner == rank:
            ours.append(index)
    return frozenset(ours)


class _Hands:
    """What was dealt to whom so far, of each group."""

    def __init__(self) -> None:
        self._loads: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}

    def deal(self, what: str, group: tuple[int, ...], among: Sequence[int], nbytes: int) -> int:
        """To whoever has the least of it so far, the first of equals."""
        loads = self._loads.setdefault((what, group), dict.fromkeys(among, 0))
        owner = min(loads, key=loads.__getitem__)
        loads[owner] += nbytes
        return owner
