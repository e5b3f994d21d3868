"""The cache of a writer's plans: it keeps them between saves, as long as the state keeps its form.

It also knows which objects an earlier save has put, so that the next one refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...checkpoint.tier import Tier
from .damage import FoundDamage
from .partitioner import group_of
from .write_plan import HeldTensor, StoredObject, WritePlan, WriteProgress, forms_of

_MIB = 2**20
#: In a job of several ranks, a rank makes at least `_PARTS` objects of the tensors that it holds alone. An object is
#: not made smaller than `_LEAST` bytes for that.
_PARTS, _LEAST = 16, 4 * _MIB


class WritePlanCache:
    """The plans of one writer, and the objects of theirs that are in the store. The writer's thread uses it.

    A save may refer to frozen objects of an earlier checkpoint instead of putting them again: the known objects.

    Args:
        object_size: returns the size of an object in bytes, for the bytes of a state.
    """

    def __init__(self, rank: int, world: int, object_size: Callable[[int], int]) -> None:
        self._rank = rank
        self._world = world
        self._object_size = object_size
        #: The plans, by whether moments are rounded.
        self._held: dict[bool, WritePlan] = {}
        #: The plans of this rank apart from all others, by whether moments are rounded.
        self._apart: WritePlan | None = None
        #: Frozen objects that are in the store, by index in the present plan.
        self._known: dict[int, StoredObject] = {}
        #: The damaged checkpoints: no save refers to an object that one of them may share.
        self.damage = FoundDamage()

    def of(self, state_tensors: Sequence[HeldTensor], *, renew: bool = False) -> WritePlan:
        """Return the plan for these tensors, with moments as they are: the kept plan if it still fits, else a new one.

        Args:
            renew: make a new plan also if the size of objects has changed and no object is known.
        """
        kept, forms = self._held.get(False), forms_of(state_tensors)
        size = self._size_alone(state_tensors)
        if kept is None or kept.forms != forms or (renew and kept.alone != size and not self._known):
            rounded, before = True in self._held, kept
            kept = WritePlan.of(state_tensors, size, self._rank, self._world)
            self._known = self._as_known(before, kept)
            self._held = {False: kept}
            if rounded:
                self.rounded(state_tensors)  # not first at a notice
        return kept

    def rounded(self, state_tensors: Sequence[HeldTensor]) -> WritePlan:
        """Return the plan for these tensors with moments rounded to bfloat16."""
        exact = self.of(state_tensors)
        kept = self._held.get(True)
        if kept is None:
            kept = WritePlan.of(state_tensors, exact.alone, self._rank, self._world, rounded=True)
            self._held[True] = kept
        return kept

    def apart(self, state_tensors: Sequence[HeldTensor]) -> WritePlan:
        """Return the plan for these tensors that relies on no other rank's plan."""
        if self._apart is None or self._apart.forms != forms_of(state_tensors):
            alone = self._size_alone(state_tensors)
            self._apart = WritePlan.of(state_tensors, alone, self._rank, self._world, apart=True)
        return self._apart

    def adopt(self, write_plan: WritePlan) -> None:
        """Follow this plan, which another writer made. Known objects stay known if they have the same place in it."""
        if self._held.get(write_plan.rounded) is not write_plan:
            self._known = self._as_known(self._held.get(write_plan.rounded), write_plan)
            self._held = {write_plan.rounded: write_plan}

    def committed(self, write_progress: WriteProgress) -> None:
        """Note that this save is committed: later saves refer to its frozen objects."""
        objects = write_progress.write_plan.objects
        if write_progress.write_plan is self._held.get(write_progress.write_plan.rounded):
            self._known = {
                i: stored for i, stored in write_progress.stored.items() if objects[i].tier is Tier.FROZEN
            }
        else:
            self._known = {}  # it refers to no earlier object, and `prune` removes objects without a reference

    def forget(self) -> None:
        """Forget the known objects: later saves refer to none of them."""
        self._known = {}

    def known(self, write_plan: WritePlan) -> frozenset[int]:
        """Return the objects that a save of this plan most likely refers to and does not put."""
        return frozenset(self._sound() if write_plan is self._held.get(write_plan.rounded) else ())

    def as_before(self, index: int, stored: StoredObject) -> StoredObject | None:
        """Return the known object with the same bytes as the object that is about to be put; None if there is none."""
        known = self._known.get(index)
        if known is None or known.digest != stored.digest or known.at.attempt != stored.at.attempt:
            return None
        return None if self.damage.since(known.at) else known

    def _sound(self) -> dict[int, StoredObject]:
        """Return the known objects without those that a damaged checkpoint may share."""
        return {index: stored for index, stored in self._known.items() if not self.damage.since(stored.at)}

    def _size_alone(self, state_tensors: Sequence[HeldTensor]) -> int:
        rank = self._rank
        nbytes = sum(
            [
                state_tensor.tensor.nbytes
                for state_tensor in state_tensors
                if not group_of(state_tensor.holders, rank)
            ]
        )
        size = self._object_size(nbytes)
        # A rank's part of a job is small, and three objects of 25 MB end one after the other (seen: 9 s instead of 6).
        return size if self._world == 1 else min(size, max(_LEAST, -(-nbytes // (_PARTS * _MIB)) * _MIB))

    def _as_known(self, before: WritePlan | None, now: WritePlan) -> dict[int, StoredObject]:
        """Return the known objects that a new plan has in the same place.

        So a cache that grows does not make the next save put a frozen base again.
        """
        same = now.shared(before) if before is not None else ()
        return {index: stored for index, stored in self._known.items() if index in same}
