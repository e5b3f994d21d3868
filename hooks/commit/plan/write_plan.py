"""The write plan of a save, and its write progress, from which the manifest of either level is made."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...checkpoint.format.crc import crc32
from ...checkpoint.format.dtypes import dtype_name
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from ...checkpoint.format.manifest import Chunk, ObjectEntry, TensorEntry
from ...checkpoint.tier import Tier
from .bin_packing import PlannedObject, PlannedTensor
from .partitioner import ALL_STAY, RankRoles, plan_shares, share_of, targets

#: The tiers of the lower level, and all tiers.
WEIGHTS = (Tier.WEIGHTS, Tier.FROZEN)
ALL = tuple(Tier)


@dataclass(frozen=True, slots=True)
class WrittenState:
    """The objects and tensors of one rank's manifest."""

    objects: tuple[ObjectEntry, ...]
    tensors: tuple[TensorEntry, ...]
    #: Tensors that were read for this save, and equal byte for byte the tensors of an earlier committed checkpoint.
    as_before: frozenset[str] = frozenset()


class HeldTensor(Protocol):
    """A tensor of the state, as a plan reads it: a `StateTensor`. This room does not know torch."""

    @property
    def name(self) -> str: ...
    @property
    def tensor(self) -> Any: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def offsets(self) -> tuple[int, ...] | None: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def holders(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The objects that a state of these names, dtypes and shapes becomes, for all ranks that hold it.

    A writer makes the plan before the notice, and keeps it until a name, dtype or shape changes.
    """

    #: The tensors as they are, and as they are stored.
    forms: tuple[PlannedTensor, ...]
    items: tuple[PlannedTensor, ...]
    objects: tuple[PlannedObject, ...]
    #: Largest size of an object, in bytes.
    size: int
    rank: int = 0
    world: int = 1
    #: Moments are stored rounded to bfloat16.
    rounded: bool = False
    #: Largest size of an object that this rank holds alone, in bytes.
    alone: int = 0
    #: This plan relies on no other rank's plan.
    apart: bool = False

    @classmethod
    def of(
        cls,
        state_tensors: Sequence[HeldTensor],
        alone: int,
        rank: int,
        world: int,
        rounded: bool = False,
        apart: bool = False,
    ) -> WritePlan:
        """Return the plan for these tensors.

        The objects of the lower level come first, and are the same whether moments are rounded or not. So an index of theirs
        means the same object in both plans.

        Args:
            alone: largest size of an object that this rank holds alone, in bytes.
            rounded: plan moments as bfloat16.
            apart: rely on no other rank's plan.
        """
        forms = forms_of(state_tensors)
        items = [each._replace(dtype="bfloat16") if rounded and _is_moment(each) else each for each in forms]
        sizes_of = targets(
            items, [state_tensor.tensor.nbytes for state_tensor in state_tensors], rank, alone, apart=apart
        )
        objects = plan_shares(items, rank, sizes_of)
        largest = max(sizes_of.values())
        return cls(forms, tuple(items), objects, largest, rank, world, rounded, alone, apart)

    def indices_of(self, tier: Tier) -> list[int]:
        return [index for index, planned in enumerate(self.objects) if planned.tier is tier]

    def shared(self, other: WritePlan) -> set[int]:
        """Return the indices at which both plans have the same object."""
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

    #: The CRCs of its pieces.
    crcs: list[int]
    #: The checkpoint whose directory has it.
    at: CheckpointName
    #: SHA-256 of all its bytes, if a later save may refer to it.
    digest: bytes = b""


@dataclass(slots=True)
class WriteProgress:
    """How far one save is. The writer's threads add to `stored`, each at an index of its own."""

    write_plan: WritePlan
    stored: dict[int, StoredObject] = field(default_factory=dict)
    #: Objects in `stored` that an earlier checkpoint has put.
    spared: set[int] = field(default_factory=set)
    #: Objects that a manifest of this save names where they are.
    named: set[int] = field(default_factory=set)
    #: Objects in `stored` that the store may have lost, as it has failed since. They do not count until they are checked again.
    doubted: set[int] = field(default_factory=set)
    #: Objects that the store has lost, as they were put. The manifest may name them already, so they are put again as they were.
    lost: dict[int, StoredObject] = field(default_factory=dict)
    #: How often a request of the save failed transiently.
    failures: int = 0
    #: Bytes that have left, for each object on its way.
    leaving: dict[int, int] = field(default_factory=dict)
    #: While weights are missing, no moment uses the link; moments on their way are given up.
    weights_first: bool = False
    #: While bytes of the weights have not left, no put of a moment begins. Moments on their way go on.
    weights_ahead: bool = False
    #: The roles by which the ranks share the writing.
    roles: RankRoles = ALL_STAY
    _mine: tuple[WritePlan, frozenset[int]] | None = field(default=None, repr=False, compare=False)

    def with_roles(self, roles: RankRoles) -> WriteProgress:
        """Return the progress of the same save with other roles for its rest. Its name may change too.

        Objects in the store stay valid. (Ranks that no longer rely on each other begin anew, with a plan that is
        `apart`.)
        """
        return replace(
            self,
            stored=dict(self.stored),
            spared=set(self.spared),
            named=set(self.named),
            doubted=set(self.doubted),
            lost=dict(self.lost),
            leaving={},
            roles=roles,
            _mine=None,
        )

    @property
    def mine(self) -> frozenset[int]:
        """The objects that this rank writes. All methods of this class count only these."""
        write_plan, share = self.write_plan, self._mine
        if share is None or share[0] is not write_plan:
            share = self._mine = (write_plan, share_of(write_plan.objects, write_plan.rank, self.roles))
        return share[1]

    def missing(self, tiers: Sequence[Tier] = ALL) -> list[int]:
        """Return the objects of these tiers that are not in the store yet, in the order of their puts."""
        objects, mine = self.write_plan.objects, self.mine
        return [
            i for i, each in enumerate(objects) if i in mine and each.tier in tiers and i not in self.stored
        ]

    def lose(self, index: int) -> None:
        """Note that the store has lost an object."""
        stored = self.stored.pop(index)
        if not self.borrows(index):  # else it is put anew, as this save's own
            self.lost[index] = stored
        self.spared.discard(index)
        self.leaving.pop(index, None)

    def borrows(self, index: int) -> bool:
        """Return whether an earlier checkpoint has put the object, and no manifest of this save names it yet."""
        return index in self.spared and index not in self.named

    def holds_back(self, tier: Tier) -> bool:
        """Return whether an object of this tier has to wait, even if its put has begun."""
        if self.weights_first and tier is Tier.MOMENTS:
            self.weights_first = not self.has(WEIGHTS)
            return self.weights_first
        return False

    def waits(self, tier: Tier) -> bool:
        """Return whether no put of this tier may begin now."""
        ahead = self.weights_ahead and tier is Tier.MOMENTS and self.left(WEIGHTS) > 0
        return ahead or self.holds_back(tier)

    def has(self, tiers: Sequence[Tier]) -> bool:
        objects = self.write_plan.objects
        return not self.missing(tiers) and all(objects[i].tier not in tiers for i in list(self.doubted))

    def share(self, tiers: Sequence[Tier] = ALL) -> int:
        """Return the bytes of these tiers that this rank writes, in the store or not."""
        objects = self.write_plan.objects
        return sum(objects[i].size for i in self.mine if objects[i].tier in tiers)

    def bytes_of(self, tiers: Sequence[Tier]) -> int:
        """Return the bytes of these tiers that are in the store."""
        objects, mine = self.write_plan.objects, self.mine
        return sum(objects[i].size for i in list(self.stored) if i in mine and objects[i].tier in tiers)

    def put_of(self, tiers: Sequence[Tier]) -> int:
        """Return the bytes of these tiers that this save has put into the store."""
        objects, mine = self.write_plan.objects, self.mine
        return self.bytes_of(tiers) - sum(
            objects[i].size for i in self.spared if i in mine and objects[i].tier in tiers
        )

    def left(self, tiers: Sequence[Tier] = ALL, known: Container[int] = ()) -> int:
        """Return the bytes of these tiers that have not left for the store.

        Args:
            known: objects that the save most likely only refers to. They do not count.
        """
        objects, leaving = self.write_plan.objects, self.leaving
        return sum(objects[i].size - leaving.get(i, 0) for i in self.missing(tiers) if i not in known)

    def refers(self, run_id: str, name: CheckpointName) -> frozenset[str]:
        """Return the keys of the objects in other checkpoints' directories that the manifest of `name` refers to so far."""
        write_plan, stored = self.write_plan, [*self.stored.items()]
        return frozenset(
            checkpoint_prefix(run_id, each.at) + object_name(write_plan.rank, write_plan.world, index)
            for index, each in stored
            if each.at != name
        )

    def written(self, name: CheckpointName, tiers: Sequence[Tier] = ALL) -> WrittenState:
        """Return the content of the manifest of `name`: all that this rank holds, and the objects of its share.

        An object in the directory of an earlier checkpoint stays there, and the manifest refers to it.
        """
        write_plan, mine = self.write_plan, self.mine
        used = [i for i, planned in enumerate(write_plan.objects) if i in mine and planned.tier in tiers]
        self.named.update(used)
        number = {index: at for at, index in enumerate(used)}
        chunks: dict[int, list[Chunk]] = {
            i: [] for i, item in enumerate(write_plan.items) if item.tier in tiers
        }
        for index in used:
            for piece, crc in zip(write_plan.objects[index].pieces, self.stored[index].crcs, strict=True):
                chunk = Chunk(piece.offsets, piece.sizes, number[index], piece.start, piece.end, crc)
                chunks[piece.item].append(chunk)
        tensors = [self._tensor(index, tuple(sorted(parts))) for index, parts in chunks.items()]
        return WrittenState(
            tuple([self._entry(index, name) for index in used]), tuple(tensors), self._as_before()
        )

    def _as_before(self) -> frozenset[str]:
        """Return the names of the frozen tensors if all of them are spared, else none.

        If some of them moved, the rest may have moved after the read.
        """
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
        dtype = self.write_plan.forms[index].dtype
        stored = item.dtype if item.dtype != dtype else ""
        shape = item.sizes if item.shape is None else item.shape
        return TensorEntry(item.name, dtype, shape, chunks, stored)


def forms_of(state_tensors: Sequence[HeldTensor]) -> tuple[PlannedTensor, ...]:
    """Return all properties of state tensors that a plan depends on."""
    return tuple(
        [
            PlannedTensor(
                state_tensor.name,
                dtype_name(state_tensor.tensor.dtype),
                tuple(state_tensor.tensor.shape),
                state_tensor.offsets,
                state_tensor.shape,
                state_tensor.tier,
                state_tensor.holders,
            )
            for state_tensor in state_tensors
        ]
    )


def _is_moment(form: PlannedTensor) -> bool:
    """Return whether the tensor may be rounded: an optimizer's running mean, and no counter."""
    return form.tier is Tier.MOMENTS and form.dtype == "float32" and bool(form.sizes)
