"""The plans that a writer follows, and what of them is in the store already. Made before the notice, kept while they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..format.keys import CheckpointName, object_name
from ..format.leaf import Leaf, Tier
from ..format.sharing import group_of
from .draft import Draft, Landed, Outline, shapes_of

_MIB = 2**20
#: Of several ranks, objects that what one of them holds alone makes at least, unless they were smaller than that.
_PARTS, _LEAST = 16, 4 * _MIB


class Outlines:
    """Of one writer, used by its thread.

    Args:
        object_size: of objects that hold so many bytes together.
    """

    def __init__(self, rank: int, world: int, object_size: Callable[[int], int]) -> None:
        self._rank = rank
        self._world = world
        self._object_size = object_size
        #: By whether moments are rounded.
        self._held: dict[bool, Outline] = {}
        #: The same, of this rank apart from all others.
        self._apart: dict[bool, Outline] = {}
        #: Frozen objects that are in the store, by index in the present outline.
        self._known: dict[int, Landed] = {}

    def of(self, leaves: Sequence[Leaf], *, renew: bool = False) -> Outline:
        """As `Writer.outline`."""
        held, shapes = self._held.get(False), shapes_of(leaves)
        size = self._size_alone(leaves)
        if held is None or held.shapes != shapes or (renew and held.alone != size and not self._known):
            rounded, before = True in self._held, held
            held = Outline.of(leaves, size, self._rank, self._world)
            self._known = self._as_known(before, held)
            self._held = {False: held}
            if rounded:
                self.rounded(leaves)  # not first at a notice
        return held

    def rounded(self, leaves: Sequence[Leaf]) -> Outline:
        """As `Writer.rounded`."""
        whole = self.of(leaves)
        held = self._held.get(True)
        if held is None:
            held = Outline.of(leaves, whole.alone, self._rank, self._world, rounded=True)
            self._held[True] = held
        return held

    def apart(self, leaves: Sequence[Leaf], *, rounded: bool = False) -> Outline:
        """As `Writer.apart`."""
        held = self._apart.get(rounded)
        if held is None or held.shapes != shapes_of(leaves):
            alone = self._size_alone(leaves)
            held = Outline.of(leaves, alone, self._rank, self._world, rounded, apart=True)
            self._apart[rounded] = held
        return held

    def adopt(self, outline: Outline) -> None:
        """As `Writer.adopt`."""
        if self._held.get(outline.rounded) is not outline:
            self._known = self._as_known(self._held.get(outline.rounded), outline)
            self._held = {outline.rounded: outline}

    def committed(self, draft: Draft) -> None:
        """As `Writer.committed`."""
        objects = draft.outline.objects
        if draft.outline is self._held.get(draft.outline.rounded):
            self._known = {i: held for i, held in draft.landed.items() if objects[i].tier is Tier.FROZEN}
        else:
            self._known = {}  # it refers to nothing of before, and what nobody refers to is pruned

    def referred(self) -> Mapping[CheckpointName, frozenset[str]]:
        """As `Writer.referred`."""
        found: dict[CheckpointName, set[str]] = {}
        for index, landed in self._known.items():
            found.setdefault(landed.at, set()).add(object_name(self._rank, self._world, index))
        return {name: frozenset(objects) for name, objects in found.items()}

    def forget(self) -> None:
        """Nothing is in the store that a save may refer to."""
        self._known = {}

    def known(self, outline: Outline) -> frozenset[int]:
        """The objects that are most likely referred to, and not put."""
        return frozenset(self._known if outline is self._held.get(outline.rounded) else ())

    def as_before(self, index: int, landed: Landed) -> Landed | None:
        """Where the same bytes lie that are about to be put."""
        known = self._known.get(index)
        if known is None or known.digest != landed.digest or known.at.attempt != landed.at.attempt:
            return None
        return known

    def _size_alone(self, leaves: Sequence[Leaf]) -> int:
        rank = self._rank
        nbytes = sum([leaf.tensor.nbytes for leaf in leaves if not group_of(leaf.holders, rank)])
        size = self._object_size(nbytes)
        # A rank's part of a job is small, and three objects of 25 MB end one after the other (seen: 9 s for 6).
        return size if self._world == 1 else min(size, max(_LEAST, -(-nbytes // (_PARTS * _MIB)) * _MIB))

    def _as_known(self, before: Outline | None, now: Outline) -> dict[int, Landed]:
        """What is known, as far as a new plan has it in the same place: a cache that grows is no reason to put a frozen base
        anew."""
        same = now.shared(before) if before is not None else ()
        return {index: held for index, held in self._known.items() if index in same}
