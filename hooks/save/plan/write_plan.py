"""What a save has in the store so far, and the plan that it follows: from it a manifest of either level is made."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint.format.crc import crc32
from ...checkpoint.format.dtypes import dtype_name
from ...checkpoint.format.keys import CheckpointName, object_name
from ...checkpoint.format.manifest import Chunk, ObjectEntry, TensorEntry
from ...state.tensor_item import StateTensor, Tier
from .bin_packing import PlannedObject, PlannedTensor
from .partitioner import ALL_STAY, RankRoles, group_of, plan_shares, share_of, targets

if TYPE_CHECKING:
    import torch

#: The tiers of the lower level, and all.
WEIGHTS = (Tier.WEIGHTS, Tier.FROZEN)
ALL = tuple(Tier)


@dataclass(frozen=True, slots=True)
class WrittenState:
    """What a manifest says about the bytes."""

    objects: tuple[ObjectEntry, ...]
    tensors: tuple[TensorEntry, ...]
    #: Tensors that were read for this save, and were byte for byte what an earlier one committed.
    as_before: frozenset[str] = frozenset()


class TensorForm(NamedTuple):
    """All of a leaf that a plan depends on."""

    name: str
    dtype: torch.dtype
    sizes: torch.Size
    offsets: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    holders: tuple[int, ...] = ()
    tier: Tier = Tier.WEIGHTS


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What a state of these names, dtypes and shapes is written as, by all who hold it. Made before the notice; it stays while
    they do."""

    shapes: list[TensorForm]
    items: tuple[PlannedTensor, ...]
    objects: tuple[PlannedObject, ...]
    #: Bytes of the largest object at most.
    size: int
    rank: int = 0
    world: int = 1
    #: Moments are stored rounded to bfloat16.
    rounded: bool = False
    #: Of the objects that this rank holds alone, the largest at most.
    alone: int = 0
    #: No other rank's plan is relied on.
    apart: bool = False

    @classmethod
    def of(
        cls,
        leaves: Sequence[StateTensor],
        alone: int,
        rank: int,
        world: int,
        rounded: bool = False,
        apart: bool = False,
    ) -> WritePlan:
        """The objects of the lower level are the same, rounded or not, and stand first: of one size, their indices
        mean the same in both."""
        items = []
        for leaf in leaves:
            dtype = "bfloat16" if rounded and is_moment(leaf) else dtype_name(leaf.tensor.dtype)
            sizes = tuple(leaf.tensor.shape)
            items.append(
                PlannedTensor(leaf.name, dtype, sizes, leaf.offsets, leaf.shape, leaf.tier, leaf.holders)
            )
        sizes_of = targets(items, [leaf.tensor.nbytes for leaf in leaves], rank, alone, apart=apart)
        objects = plan_shares(items, rank, sizes_of)
        largest = max(sizes_of.values())
        return cls(shapes_of(leaves), tuple(items), objects, largest, rank, world, rounded, alone, apart)

    def indices_of(self, tier: Tier) -> list[int]:
        return [index for index, planned in enumerate(self.objects) if planned.tier is tier]

    def shared(self, other: WritePlan) -> set[int]:
        """The objects that are the same in both, under the same number."""
        pairs = enumerate(zip(self.objects, other.objects, strict=False))
        return {index for index, (ours, theirs) in pairs if ours == theirs}

    def bytes_of(self, tiers: Sequence[Tier]) -> int:
        return sum(planned.size for planned in self.objects if planned.tier in tiers)

    @property
    def nbytes(self) -> int:
        return sum(planned.size for planned in self.objects)


@dataclass(slots=True)
class StoredObject:
    """An object that is in the store."""

    #: Of its pieces.
    crcs: list[int]
    #: The checkpoint in whose folder it lies.
    at: CheckpointName
    #: SHA-256 of all its bytes, where a later save may refer to it.
    digest: bytes = b""


@dataclass(slots=True)
class WriteProgress:
    """One save. Its writer's threads add to `stored`, each its own index."""

    write_plan: WritePlan
    stored: dict[int, StoredObject] = field(default_factory=dict)
    #: Of `stored`, what an earlier checkpoint has put.
    spared: set[int] = field(default_factory=set)
    #: Of `stored`, what the store may have lost: it was away since. Nothing is said of it before it was looked at again.
    doubted: set[int] = field(default_factory=set)
    #: Of objects on their way: the bytes that left.
    leaving: dict[int, int] = field(default_factory=dict)
    #: No moment takes any of the link as long as weights are missing; those on their way are given up.
    weights_first: bool = False
    #: No moment is begun as long as bytes of the weights have not left. Those on their way go on.
    weights_ahead: bool = False
    #: By which the ranks share the writing.
    roles: RankRoles = ALL_STAY
    _mine: tuple[WritePlan, frozenset[int]] | None = field(default=None, repr=False, compare=False)

    def with_roles(self, roles: RankRoles) -> WriteProgress:
        """The same save, shared otherwise from here on, under whatever name: what has landed stays where it is. (Ranks that do
        not rely on each other any more begin anew, by a plan that is `apart`.)"""
        return replace(
            self,
            stored=dict(self.stored),
            spared=set(self.spared),
            doubted=set(self.doubted),
            leaving={},
            roles=roles,
            _mine=None,
        )

    @property
    def mine(self) -> frozenset[int]:
        """The objects that this rank writes. Nothing else is counted anywhere here."""
        write_plan, held = self.write_plan, self._mine
        if held is None or held[0] is not write_plan:
            held = self._mine = (write_plan, share_of(write_plan.objects, write_plan.rank, self.roles))
        return held[1]

    def missing(self, tiers: Sequence[Tier] = ALL) -> list[int]:
        """The objects of these tiers that are not in the store yet, in the order in which they are to be put."""
        objects, mine = self.write_plan.objects, self.mine
        return [
            i for i, each in enumerate(objects) if i in mine and each.tier in tiers and i not in self.stored
        ]

    def anew(self, tiers: Sequence[Tier] = ALL) -> list[int]:
        """As `missing`, where a part of the save begins: what an outage in an earlier part left in doubt is put again."""
        for index in self.doubted:
            del self.stored[index]
        self.doubted.clear()
        return self.missing(tiers)

    def holds_back(self, tier: Tier) -> bool:
        """Whether an object of this tier has to wait."""
        if self.weights_first and tier is Tier.MOMENTS:
            self.weights_first = not self.has(WEIGHTS)
            return self.weights_first
        return False

    def waits(self, tier: Tier) -> bool:
        """Whether an object of this tier is not to be begun now."""
        ahead = self.weights_ahead and tier is Tier.MOMENTS and self.left(WEIGHTS) > 0
        return ahead or self.holds_back(tier)

    def has(self, tiers: Sequence[Tier]) -> bool:
        objects = self.write_plan.objects
        return not self.missing(tiers) and all(objects[i].tier not in tiers for i in list(self.doubted))

    def share(self, tiers: Sequence[Tier] = ALL) -> int:
        """Of these tiers, the bytes that this rank writes, in the store or not."""
        objects = self.write_plan.objects
        return sum(objects[i].size for i in self.mine if objects[i].tier in tiers)

    def bytes_of(self, tiers: Sequence[Tier]) -> int:
        """Of these tiers, what is in the store."""
        objects, mine = self.write_plan.objects, self.mine
        return sum(objects[i].size for i in list(self.stored) if i in mine and objects[i].tier in tiers)

    def put_of(self, tiers: Sequence[Tier]) -> int:
        """Of these tiers, what this save has put there."""
        objects, mine = self.write_plan.objects, self.mine
        return self.bytes_of(tiers) - sum(
            objects[i].size for i in self.spared if i in mine and objects[i].tier in tiers
        )

    def left(self, tiers: Sequence[Tier] = ALL, known: Container[int] = ()) -> int:
        """Of these tiers, what has not left for the store. Objects that are most likely only referred to do not count."""
        objects, leaving = self.write_plan.objects, self.leaving
        return sum(objects[i].size - leaving.get(i, 0) for i in self.missing(tiers) if i not in known)

    def written(self, name: CheckpointName, tiers: Sequence[Tier] = ALL) -> WrittenState:
        """For the manifest of `name`: all that this rank holds, and where its share of it lies. What lies in the folder of
        an earlier checkpoint is referred to there."""
        write_plan, mine = self.write_plan, self.mine
        used = [i for i, planned in enumerate(write_plan.objects) if i in mine and planned.tier in tiers]
        number = {index: at for at, index in enumerate(used)}
        chunks: dict[int, list[Chunk]] = {
            i: [] for i, item in enumerate(write_plan.items) if item.tier in tiers
        }
        for index in used:
            for piece, crc in zip(write_plan.objects[index].pieces, self.stored[index].crcs, strict=True):
                chunk = Chunk(piece.offsets, piece.sizes, number[index], piece.start, piece.end, crc)
                chunks[piece.item].append(chunk)
        tensors = [self._tensor(index, tuple(sorted(held))) for index, held in chunks.items()]
        return WrittenState(
            tuple([self._entry(index, name) for index in used]), tuple(tensors), self._as_before()
        )

    def _as_before(self) -> frozenset[str]:
        """What nobody trains, where all of it is spared. Where some of it moved, the rest may have moved after it was read."""
        write_plan = self.write_plan
        if not self.spared.issuperset(self.mine.intersection(write_plan.indices_of(Tier.FROZEN))):
            return frozenset()
        return frozenset([item.name for item in write_plan.items if item.tier is Tier.FROZEN])

    def _entry(self, index: int, name: CheckpointName) -> ObjectEntry:
        planned, at = self.write_plan.objects[index], self.stored[index].at
        return ObjectEntry(
            name=object_name(self.write_plan.rank, self.write_plan.world, index),
            size=planned.size,
            header=len(planned.header),
            header_crc32=crc32(planned.header),
            checkpoint="" if at == name else str(at),
        )

    def _tensor(self, index: int, chunks: tuple[Chunk, ...]) -> TensorEntry:
        item = self.write_plan.items[index]
        dtype = dtype_name(self.write_plan.shapes[index].dtype)
        stored = item.dtype if item.dtype != dtype else ""
        shape = item.sizes if item.shape is None else item.shape
        return TensorEntry(item.name, dtype, shape, chunks, stored)


def shapes_of(leaves: Sequence[StateTensor]) -> list[TensorForm]:
    return [
        TensorForm(
            leaf.name, leaf.tensor.dtype, leaf.tensor.shape, leaf.offsets, leaf.shape, leaf.holders, leaf.tier
        )
        for leaf in leaves
    ]


def is_moment(leaf: StateTensor) -> bool:
    """Whether it may be rounded: an optimizer's running mean, and no counter."""
    return leaf.tier is Tier.MOMENTS and dtype_name(leaf.tensor.dtype) == "float32" and leaf.tensor.dim() > 0


# The plans that a writer follows, and what of them is in the store already. Made before the notice, kept while they hold.

_MIB = 2**20
#: Of several ranks, objects that what one of them holds alone makes at least, unless they were smaller than that.
_PARTS, _LEAST = 16, 4 * _MIB


class WritePlanCache:
    """Of one writer, used by its thread.

    Args:
        object_size: of objects that hold so many bytes together.
    """

    def __init__(self, rank: int, world: int, object_size: Callable[[int], int]) -> None:
        self._rank = rank
        self._world = world
        self._object_size = object_size
        #: By whether moments are rounded.
        self._held: dict[bool, WritePlan] = {}
        #: The same, of this rank apart from all others.
        self._apart: dict[bool, WritePlan] = {}
        #: Frozen objects that are in the store, by index in the present outline.
        self._known: dict[int, StoredObject] = {}

    def of(self, leaves: Sequence[StateTensor], *, renew: bool = False) -> WritePlan:
        """As `Writer.outline`."""
        held, shapes = self._held.get(False), shapes_of(leaves)
        size = self._size_alone(leaves)
        if held is None or held.shapes != shapes or (renew and held.alone != size and not self._known):
            rounded, before = True in self._held, held
            held = WritePlan.of(leaves, size, self._rank, self._world)
            self._known = self._as_known(before, held)
            self._held = {False: held}
            if rounded:
                self.rounded(leaves)  # not first at a notice
        return held

    def rounded(self, leaves: Sequence[StateTensor]) -> WritePlan:
        """As `Writer.rounded`."""
        whole = self.of(leaves)
        held = self._held.get(True)
        if held is None:
            held = WritePlan.of(leaves, whole.alone, self._rank, self._world, rounded=True)
            self._held[True] = held
        return held

    def apart(self, leaves: Sequence[StateTensor], *, rounded: bool = False) -> WritePlan:
        """As `Writer.apart`."""
        held = self._apart.get(rounded)
        if held is None or held.shapes != shapes_of(leaves):
            alone = self._size_alone(leaves)
            held = WritePlan.of(leaves, alone, self._rank, self._world, rounded, apart=True)
            self._apart[rounded] = held
        return held

    def adopt(self, write_plan: WritePlan) -> None:
        """As `Writer.adopt`."""
        if self._held.get(write_plan.rounded) is not write_plan:
            self._known = self._as_known(self._held.get(write_plan.rounded), write_plan)
            self._held = {write_plan.rounded: write_plan}

    def committed(self, draft: WriteProgress) -> None:
        """As `Writer.committed`."""
        objects = draft.write_plan.objects
        if draft.write_plan is self._held.get(draft.write_plan.rounded):
            self._known = {i: held for i, held in draft.stored.items() if objects[i].tier is Tier.FROZEN}
        else:
            self._known = {}  # it refers to nothing of before, and what nobody refers to is pruned

    def referred(self) -> Mapping[CheckpointName, frozenset[str]]:
        """As `Writer.referred`."""
        found: dict[CheckpointName, set[str]] = {}
        for index, stored in self._known.items():
            found.setdefault(stored.at, set()).add(object_name(self._rank, self._world, index))
        return {name: frozenset(objects) for name, objects in found.items()}

    def forget(self) -> None:
        """Nothing is in the store that a save may refer to."""
        self._known = {}

    def known(self, write_plan: WritePlan) -> frozenset[int]:
        """The objects that are most likely referred to, and not put."""
        return frozenset(self._known if write_plan is self._held.get(write_plan.rounded) else ())

    def as_before(self, index: int, stored: StoredObject) -> StoredObject | None:
        """Where the same bytes lie that are about to be put."""
        known = self._known.get(index)
        if known is None or known.digest != stored.digest or known.at.attempt != stored.at.attempt:
            return None
        return known

    def _size_alone(self, leaves: Sequence[StateTensor]) -> int:
        rank = self._rank
        nbytes = sum([leaf.tensor.nbytes for leaf in leaves if not group_of(leaf.holders, rank)])
        size = self._object_size(nbytes)
        # A rank's part of a job is small, and three objects of 25 MB end one after the other (seen: 9 s for 6).
        return size if self._world == 1 else min(size, max(_LEAST, -(-nbytes // (_PARTS * _MIB)) * _MIB))

    def _as_known(self, before: WritePlan | None, now: WritePlan) -> dict[int, StoredObject]:
        """What is known, as far as a new plan has it in the same place: a cache that grows is no reason to put a frozen base
        anew."""
        same = now.shared(before) if before is not None else ()
        return {index: held for index, held in self._known.items() if index in same}
