"""What a save has in the store so far, and the plan that it follows: from it a manifest of either level is made."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch

from ..format.chunks import Item, PlannedObject, plan
from ..format.crc import crc32
from ..format.dtypes import dtype_name
from ..format.keys import CheckpointName, object_name
from ..format.leaf import Leaf, Tier
from ..format.manifest import Chunk, ObjectEntry, TensorEntry

#: The tiers of the lower level, and all.
WEIGHTS = (Tier.WEIGHTS, Tier.FROZEN)
ALL = tuple(Tier)


@dataclass(frozen=True, slots=True)
class Written:
    """What a manifest says about the bytes."""

    objects: tuple[ObjectEntry, ...]
    tensors: tuple[TensorEntry, ...]
    #: Tensors that were read for this save, and were byte for byte what an earlier one committed.
    as_before: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outline:
    """What a state of these names, dtypes and shapes is written as. Made before the notice; it stays while they do."""

    shapes: list[tuple[str, torch.dtype, torch.Size]]
    items: tuple[Item, ...]
    objects: tuple[PlannedObject, ...]
    #: Bytes of the largest object at most.
    size: int
    rank: int = 0
    world: int = 1
    #: Moments are stored rounded to bfloat16.
    rounded: bool = False

    @classmethod
    def of(cls, leaves: Sequence[Leaf], size: int, rank: int, world: int, rounded: bool = False) -> Outline:
        """The objects of the lower level are the same, rounded or not, and stand first: of one `size`, their indices
        mean the same in both."""
        items = []
        for leaf in leaves:
            dtype = torch.bfloat16 if rounded and is_moment(leaf) else leaf.tensor.dtype
            items.append(Item(leaf.name, dtype_name(dtype), tuple(leaf.tensor.shape), tier=leaf.tier))
        return cls(shapes_of(leaves), tuple(items), plan(items, size), size, rank, world, rounded)

    def indices_of(self, tier: Tier) -> list[int]:
        return [index for index, planned in enumerate(self.objects) if planned.tier is tier]

    def shared(self, other: Outline) -> set[int]:
        """The objects that are the same in both, under the same number."""
        pairs = enumerate(zip(self.objects, other.objects, strict=False))
        return {index for index, (ours, theirs) in pairs if ours == theirs}

    def bytes_of(self, tiers: Sequence[Tier]) -> int:
        return sum(planned.size for planned in self.objects if planned.tier in tiers)

    @property
    def nbytes(self) -> int:
        return sum(planned.size for planned in self.objects)


@dataclass(slots=True)
class Landed:
    """An object that is in the store."""

    #: Of its pieces.
    crcs: list[int]
    #: The checkpoint in whose folder it lies.
    at: CheckpointName
    #: SHA-256 of all its bytes, where a later save may refer to it.
    digest: bytes = b""


@dataclass(slots=True)
class Draft:
    """One save. Its writer's threads add to `landed`, each its own index."""

    outline: Outline
    landed: dict[int, Landed] = field(default_factory=dict)
    #: Of `landed`, what an earlier checkpoint has put.
    spared: set[int] = field(default_factory=set)
    #: Of objects on their way: the bytes that left.
    leaving: dict[int, int] = field(default_factory=dict)
    #: No moment takes any of the link as long as weights are missing; those on their way are given up.
    weights_first: bool = False

    def missing(self, tiers: Sequence[Tier] = ALL) -> list[int]:
        """The objects of these tiers that are not in the store yet, in the order in which they are to be put."""
        objects = self.outline.objects
        return [i for i, each in enumerate(objects) if each.tier in tiers and i not in self.landed]

    def holds_back(self, tier: Tier) -> bool:
        """Whether an object of this tier has to wait."""
        if self.weights_first and tier is Tier.MOMENTS:
            self.weights_first = not self.has(WEIGHTS)
            return self.weights_first
        return False

    def has(self, tiers: Sequence[Tier]) -> bool:
        return not self.missing(tiers)

    def bytes_of(self, tiers: Sequence[Tier]) -> int:
        """Of these tiers, what is in the store."""
        objects = self.outline.objects
        return sum(objects[i].size for i in list(self.landed) if objects[i].tier in tiers)

    def put_of(self, tiers: Sequence[Tier]) -> int:
        """Of these tiers, what this save has put there."""
        return self.bytes_of(tiers) - sum(
            self.outline.objects[i].size for i in self.spared if self.outline.objects[i].tier in tiers
        )

    def left(self, tiers: Sequence[Tier] = ALL, known: Container[int] = ()) -> int:
        """Of these tiers, what has not left for the store. Objects that are most likely only referred to do not count."""
        objects, leaving = self.outline.objects, self.leaving
        return sum(objects[i].size - leaving.get(i, 0) for i in self.missing(tiers) if i not in known)

    def written(self, name: CheckpointName, tiers: Sequence[Tier] = ALL) -> Written:
        """For the manifest of `name`. What lies in the folder of an earlier checkpoint is referred to there."""
        outline = self.outline
        used = [i for i, planned in enumerate(outline.objects) if planned.tier in tiers]
        number = {index: at for at, index in enumerate(used)}
        chunks: dict[int, list[Chunk]] = {i: [] for i, item in enumerate(outline.items) if item.tier in tiers}
        for index in used:
            for piece, crc in zip(outline.objects[index].pieces, self.landed[index].crcs, strict=True):
                chunk = Chunk(piece.offsets, piece.sizes, number[index], piece.start, piece.end, crc)
                chunks[piece.item].append(chunk)
        tensors = [self._tensor(index, tuple(sorted(held))) for index, held in chunks.items()]
        return Written(tuple([self._entry(index, name) for index in used]), tuple(tensors), self._as_before())

    def _as_before(self) -> frozenset[str]:
        """What nobody trains, where all of it is spared. Where some of it moved, the rest may have moved after it was read."""
        outline = self.outline
        if not self.spared.issuperset(outline.indices_of(Tier.FROZEN)):
            return frozenset()
        return frozenset([item.name for item in outline.items if item.tier is Tier.FROZEN])

    def _entry(self, index: int, name: CheckpointName) -> ObjectEntry:
        planned, at = self.outline.objects[index], self.landed[index].at
        return ObjectEntry(
            name=object_name(self.outline.rank, self.outline.world, index),
            size=planned.size,
            header=len(planned.header),
            header_crc32=crc32(planned.header),
            checkpoint="" if at == name else str(at),
        )

    def _tensor(self, index: int, chunks: tuple[Chunk, ...]) -> TensorEntry:
        item = self.outline.items[index]
        dtype = dtype_name(self.outline.shapes[index][1])
        stored = item.dtype if item.dtype != dtype else ""
        return TensorEntry(item.name, dtype, item.sizes, chunks, stored)


def shapes_of(leaves: Sequence[Leaf]) -> list[tuple[str, torch.dtype, torch.Size]]:
    return [(leaf.name, leaf.tensor.dtype, leaf.tensor.shape) for leaf in leaves]


def is_moment(leaf: Leaf) -> bool:
    """Whether it may be rounded: an optimizer's running mean, and no counter."""
    return leaf.tier is Tier.MOMENTS and leaf.tensor.dtype == torch.float32 and leaf.tensor.dim() > 0
