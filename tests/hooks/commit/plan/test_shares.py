"""The shares of all ranks are the whole: whatever they hold of it, whoever goes, in whatever order each lists its tensors."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.coverage import coverage
from spotguard.hooks.checkpoint.format.keys import CheckpointName
from spotguard.hooks.checkpoint.format.manifest import RankManifest, private_name
from spotguard.hooks.checkpoint.tier import Tier
from spotguard.hooks.commit.plan.partitioner import ALL_STAY, RankRoles
from spotguard.hooks.commit.plan.write_plan import ALL, WEIGHTS, StoredObject, WritePlan, WriteProgress
from spotguard.hooks.state.state_tensor import StateTensor
from spotguard.providers.errors import CheckpointError
from tests.tiers import examples

pytestmark = pytest.mark.torch

NAME, NEXT = CheckpointName(1, 5, 2), CheckpointName(1, 5, 4)


@dataclass(frozen=True)
class Spread:
    """A tensor as the ranks of a job hold it."""

    name: str
    shape: tuple[int, ...]
    tier: Tier
    #: "replica": of `holders`; "rows": a part each; "grid": the same parts in each half of the ranks; "first": one rank
    #: writes what all hold; "own": each has one of its own.
    kind: str
    holders: tuple[int, ...]

    def state_tensor(self, rank: int, world: int) -> StateTensor | None:
        if self.kind == "own":
            return self._leaf(self.shape, name=private_name(rank, self.name))
        if self.kind == "first":
            return self._leaf(self.shape, holders=(0,))
        if self.kind == "replica":
            return self._leaf(self.shape, holders=self.holders) if rank in self.holders else None
        parts = world // 2 if self.kind == "grid" else world
        part = rank % parts
        size = -(-self.shape[0] // parts)
        first, last = (min(each * size, self.shape[0]) for each in (part, part + 1))
        holders = (part, part + parts) if self.kind == "grid" else ()
        offsets = (first, *(0,) * (len(self.shape) - 1))
        return self._leaf((last - first, *self.shape[1:]), offsets=offsets, holders=holders)

    def _leaf(
        self,
        sizes: tuple[int, ...],
        *,
        name: str = "",
        offsets: tuple[int, ...] | None = None,
        holders: tuple[int, ...] = (),
    ) -> StateTensor:
        tensor = torch.empty(sizes, device="meta")  # no byte of it is needed to plan
        shape = None if offsets is None else self.shape
        return StateTensor(name or self.name, tensor, False, self.tier, offsets, shape, holders)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[Spread], set[int]]:
    """How many ranks, what they hold, and who goes."""
    world = draw(st.sampled_from([2, 4, 6]))
    ranks = st.sampled_from(range(world))
    shapes = st.sampled_from([(3, 5), (1000, 700), (64, 40_000), (9, 300, 500), (1, 7)])
    spreads = draw(
        st.lists(
            st.tuples(
                shapes,
                st.sampled_from(Tier),
                st.sampled_from(["replica", "replica", "rows", "grid", "first", "own"]),
                st.sets(ranks, min_size=1),
            ),
            min_size=1,
            max_size=10,
        )
    )
    held = [
        Spread(f"t{index}", shape, tier, kind, tuple(sorted(holders)))
        for index, (shape, tier, kind, holders) in enumerate(spreads)
    ]
    return world, held, draw(st.sets(ranks))


def draft_of(rank: int, world: int, held: list[Spread], roles: RankRoles) -> WriteProgress:
    state_tensors = [
        state_tensor for spread in held if (state_tensor := spread.state_tensor(rank, world)) is not None
    ]
    random.Random(rank).shuffle(state_tensors)
    return WriteProgress(WritePlan.of(state_tensors, 2**20, rank, world, apart=roles.whole_each), roles=roles)


def land(write_progress: WriteProgress, name: CheckpointName = NAME, most: int = 10**6) -> None:
    """Put what is missing of it, as far as so many objects go; a CRC tells what its bytes are."""
    write_plan = write_progress.write_plan
    for index in write_progress.missing()[:most]:
        crcs = [
            zlib.crc32(repr((write_plan.items[piece.item].name, piece.offsets, piece.sizes)).encode())
            for piece in write_plan.objects[index].pieces
        ]
        write_progress.stored[index] = StoredObject(crcs, name)


def manifest(
    write_progress: WriteProgress, name: CheckpointName = NAME, *, full: bool = True
) -> RankManifest:
    written = write_progress.written(name, ALL if full else WEIGHTS)
    return RankManifest(
        "run",
        name.step,
        name.attempt,
        name.save,
        write_progress.write_plan.rank,
        write_progress.write_plan.world,
        written.objects,
        written.tensors,
        level="full" if full else "weights",
    )


def once(manifests: list[RankManifest]) -> None:
    """They are a checkpoint, and no element was written twice."""
    coverage(manifests)
    for tensor in coverage(manifests).tensors.values():
        boxes = [
            chunk
            for each in manifests
            for entry in each.tensors
            if entry.name == tensor.name
            for chunk in entry.chunks
        ]
        assert sum(prod(chunk.sizes) for chunk in boxes) == prod(tensor.shape), tensor.name


@settings(deadline=None, max_examples=examples(50))
@given(jobs())
def test_the_shares_are_the_whole_each_part_once(job: tuple[int, list[Spread], set[int]]) -> None:
    """At both levels; the shares of those that stay are equal but for an object; nothing lies with one that goes that one
    that stays holds too; and without any one rank's manifest it is no checkpoint."""
    world, held, departing = job
    drafts = [draft_of(rank, world, held, RankRoles(frozenset(departing))) for rank in range(world)]
    loads: dict[tuple[tuple[int, ...], bool], dict[int, int]] = {}
    largest: dict[tuple[int, ...], int] = {}
    for rank, write_progress in enumerate(drafts):
        assert write_progress.share() == sum(
            write_progress.write_plan.objects[index].size for index in write_progress.mine
        )
        for index in write_progress.mine:
            planned = write_progress.write_plan.objects[index]
            assert planned.size <= write_progress.write_plan.size
            if not planned.holders or planned.tier is Tier.FROZEN:
                continue
            assert rank not in departing or departing.issuperset(planned.holders)
            largest[planned.holders] = max(largest.get(planned.holders, 0), planned.size)
            for full in {True, planned.tier is not Tier.WEIGHTS}:
                dealt = loads.setdefault((planned.holders, full), dict.fromkeys(planned.holders, 0))
                dealt[rank] += planned.size
    for (group, _), dealt in loads.items():
        busy = [
            nbytes for rank, nbytes in dealt.items() if rank not in departing or departing.issuperset(group)
        ]
        assert max(busy) - min(busy) <= largest[group]
    for write_progress in drafts:
        land(write_progress)
    for full in (True, False):
        manifests = [manifest(write_progress, full=full) for write_progress in drafts]
        once(manifests)
        for gone in manifests:
            with pytest.raises(CheckpointError, match="missing"):
                coverage([each for each in manifests if each is not gone])


@settings(deadline=None, max_examples=examples(30))
@given(jobs(), st.integers(0, 3))
def test_a_notice_in_its_middle_shares_the_rest_anew(
    job: tuple[int, list[Spread], set[int]], before: int
) -> None:
    """What has landed stays in the folder it is in, and is never put again by who keeps it."""
    world, held, departing = job
    drafts = [draft_of(rank, world, held, ALL_STAY) for rank in range(world)]
    for write_progress in drafts:
        land(write_progress, NAME, before)
    later = [write_progress.with_roles(RankRoles(frozenset(departing))) for write_progress in drafts]
    for first, second in zip(drafts, later, strict=True):
        kept = [index for index in first.stored if index in second.mine]
        land(second, NEXT)
        assert [second.stored[index].at for index in kept] == [NAME] * len(kept)
        assert set(first.stored) <= set(second.stored)
        assert len(first.stored) == min(before, len(first.mine))
    once([manifest(write_progress, NEXT) for write_progress in later])


@settings(deadline=None, max_examples=examples(30))
@given(jobs(), st.sampled_from([0, 1]))
def test_ranks_that_rely_on_nobody_write_all_that_they_hold(
    job: tuple[int, list[Spread], set[int]], odd: int
) -> None:
    """One of them holds a tensor that the others know nothing of. What several wrote is the same boxes with the same bytes,
    and counts once."""
    world, held, departing = job
    roles = RankRoles(frozenset(departing), whole_each=True)
    drafts = []
    for rank in range(world):
        more = [Spread("odd", (64, 40_000), Tier.WEIGHTS, "replica", (rank, 99))] if rank == odd else []
        drafts.append(draft_of(rank, world, [*held, *more], roles))
        land(drafts[-1])
        assert len(drafts[-1].mine) == len(drafts[-1].write_plan.objects)
    assert "odd" in coverage([manifest(write_progress) for write_progress in drafts]).tensors


@settings(deadline=None, max_examples=examples(30))
@given(jobs(), st.integers(0, 5))
def test_the_others_can_do_without_a_rank_whose_state_they_hold(
    job: tuple[int, list[Spread], set[int]], gone: int
) -> None:
    """It died unseen: an empty manifest in its place, and the rest is whole."""
    world, held, departing = job
    gone %= world
    held = [spread for spread in held if spread.kind == "replica" and set(spread.holders) > {gone}]
    roles = RankRoles(frozenset(departing), absent=frozenset({gone}))
    drafts = [draft_of(rank, world, held, roles) for rank in range(world)]
    assert not drafts[gone].mine
    for write_progress in drafts:
        land(write_progress)
    manifests = [manifest(write_progress) for write_progress in drafts]
    manifests[gone] = manifest(draft_of(gone, world, [], roles))
    once(manifests)


def test_a_part_without_elements_is_listed_and_written_by_nobody() -> None:
    """A rank that FSDP left nothing of it, and one whose part another writes."""
    held = [
        Spread("t", (2, 8), Tier.WEIGHTS, "rows", ()),
        Spread("b", (8,), Tier.WEIGHTS, "first", ()),
    ]
    drafts = [draft_of(rank, 4, held, ALL_STAY) for rank in range(4)]
    for write_progress in drafts:
        land(write_progress)
    written = drafts[3].written(NAME)
    assert {(entry.name, entry.shape, entry.chunks) for entry in written.tensors} == {
        ("t", (2, 8), ()),
        ("b", (8,), ()),
    }
    assert written.objects == ()
    once([manifest(write_progress) for write_progress in drafts])


def test_another_ranks_share_does_not_count() -> None:
    """Not what is left of it, and not what has landed of it before it was another's."""
    held = [Spread(f"t{index}", (512, 1024), Tier(index % 3), "replica", (0, 1)) for index in range(12)]
    alone, write_progress = (draft_of(0, 2, held, roles) for roles in (RankRoles(frozenset({1})), ALL_STAY))
    assert alone.left() == alone.share()
    assert write_progress.left() == write_progress.share() < alone.share()
    land(alone)
    given_back = alone.with_roles(ALL_STAY)
    assert given_back.left() == 0
    assert given_back.has(ALL)
    assert given_back.bytes_of(ALL) == given_back.put_of(ALL) == write_progress.share()
    given_back.spared = set(given_back.stored)
    assert given_back.put_of(ALL) == 0
