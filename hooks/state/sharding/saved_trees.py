"""Trees: the values of a part as plain Python (dicts, lists, numbers …) with tensors in it, as a checkpoint has them of all ranks.

`hooks.checkpoint.format.values.encoder` turns a tree into typed JSON, and its tensors into named entries of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .dtensor import RankOf


class SavedTrees:
    """The trees of all ranks of the saved job under one registered name. Each tree is decoded once, when it is first needed.

    Args:
        saved: the encoded tree by rank of that job, for each rank that has the name.
        world: the number of ranks of that job.
        ranks: this process's rank in the resumed job, and the number of its ranks.
        decode: decodes an encoded tree.
        stand_ins: for a rank without the name, the rank whose tree is identical to it.
    """

    def __init__(
        self,
        saved: Mapping[int, Any],
        world: int,
        ranks: RankOf,
        decode: Callable[[Any], Any],
        stand_ins: Mapping[int, int],
    ) -> None:
        self.ranks = ranks
        self.world = world
        place = ranks.rank % world
        if place not in saved:
            place = stand_ins.get(place, place)
        self._order = sorted(saved, key=lambda rank: (rank != place, rank))
        self._saved = saved
        #: Whether the rank whose place this rank has, or its stand-in, saved anything. A rank that died before the others saved did not.
        self.was_there = place in saved
        self._decode = decode
        self._decoded: dict[int, Any] = {}

    @property
    def own(self) -> Any:
        """Return the tree of the rank whose place this rank has.

        If that rank did not have the name, return the tree of its stand-in, or of the first rank that has the name.
        """
        return self.of(self.source)

    @property
    def source(self) -> int:
        """Return the rank that `own` comes from."""
        return self._order[0]

    def of(self, rank: int) -> Any:
        if rank not in self._decoded:
            self._decoded[rank] = self._decode(self._saved[rank])
        return self._decoded[rank]

    def each(self) -> Iterator[tuple[int, Any]]:
        """Yield pairs of rank and tree, beginning with `own`. A tree is decoded only when the caller reaches it."""
        return ((rank, self.of(rank)) for rank in self._order)

    @property
    def decoded(self) -> Sequence[Any]:
        return list(self._decoded.values())

    @property
    def alone(self) -> bool:
        """Return whether one process saved everything, and one process restores it."""
        return self.world == 1 and self.ranks.world == 1
