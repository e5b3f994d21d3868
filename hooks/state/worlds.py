"""Whose state a rank goes on with, when the job that goes on may have other ranks than the one that saved.

- What has a name goes by its name: parameters, buffers, and what optimizers keep of them. A rank looks in the tree of the
  rank whose place it has, and for what is not there (another pipeline stage's) in the others'. Which part of a tensor
  it wants is its own layout's business.
- A random number generator goes on only where the same rank did: two ranks with one state would draw the same dropout,
  so that of a rank that did not exist stays as it is, and says so.
- A loader counts what one rank of so many has read. Among another number of ranks its position means other samples, some
  of them twice and some never: it is left at its beginning, and says so.
- Of a rank that had died before the others saved, both are lost: who has its place keeps what it has, and says so.
- Everything else (schedulers, scalers, dicts) is nearly always the same on all ranks, and a rank that is new takes
  that of rank mod the saved job's ranks, one whose own is lost that of the first rank that was there. Both say whose.

With the same number of ranks each takes its own of all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .loaders import is_position
from .parts import Part, StatefulPart
from .rng import RngPart
from .shards import Ranks


class Trees:
    """What the ranks of the saved job had under one registered name: decoded when they are asked for, each once.

    Args:
        saved: by rank of that job, where it has the name: the encoded tree.
        world: that job's ranks.
        ranks: which of the ranks of the job that goes on this is.
        decode: makes a tree of an encoded one.
        stand_ins: by rank that has not the name, the one whose tree is its own too.
    """

    def __init__(
        self,
        saved: Mapping[int, Any],
        world: int,
        ranks: Ranks,
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
        self._there = place in saved
        self._decode = decode
        self._decoded: dict[int, Any] = {}

    @property
    def own(self) -> Any:
        """That of the rank whose place this one has; where it did not have the name, the first one's who did."""
        return self.of(self.source)

    @property
    def source(self) -> int:
        """The rank whose `own` is."""
        return self._order[0]

    def of(self, rank: int) -> Any:
        if rank not in self._decoded:
            self._decoded[rank] = self._decode(self._saved[rank])
        return self._decoded[rank]

    def each(self) -> Iterator[tuple[int, Any]]:
        """(rank, its tree), `own` first. Whoever has found what he looks for asks no further."""
        return ((rank, self.of(rank)) for rank in self._order)

    @property
    def decoded(self) -> Sequence[Any]:
        return list(self._decoded.values())

    @property
    def was_there(self) -> bool:
        """Whether the rank whose place this one has, or its stand-in, said anything: one that had died before the others saved
        has not."""
        return self._there

    @property
    def alone(self) -> bool:
        """One process had everything, and one process has it again."""
        return self.world == 1 and self.ranks.world == 1


@runtime_checkable
class ByName(Protocol):
    """A part whose state is found by the names of what it belongs to, in the tree of whichever rank has it."""

    def merge(self, trees: Trees) -> Any:
        """One tree, of what this rank holds."""
        ...


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing of the checkpoint is for this part here."""

    why: str


def pick(part: Part, trees: Trees) -> Any:
    """The tree that this rank goes on with, or why there is none (`Left`)."""
    if isinstance(part, ByName):
        return part.merge(trees)
    rank, world = trees.ranks.rank, trees.ranks.world
    if isinstance(part, RngPart) and rank >= trees.world:
        return Left(
            f"the checkpoint is of {trees.world} ranks, and rank {rank} was none of them: its random number "
            "generators stay as they are"
        )
    position = isinstance(part, StatefulPart) and is_position(part.value)
    if (isinstance(part, RngPart) or position) and not trees.was_there:
        return Left(
            f"rank {rank} was not there any more when the others saved: {part.name} of its own is lost, and stays as it is"
        )
    if world != trees.world and isinstance(part, StatefulPart) and is_position(part.value):
        return Left(
            f"{part.name} counts the samples of one of {trees.world} ranks and is not restored for {world}: keep the "
            "count of samples of all ranks in a registered dict, and skip as many"
        )
    return trees.own


def unknown(part: Part, trees: Trees, picked: Any) -> str:
    """The first name that the tree of the rank whose place this one has holds and this rank does not; "" if none."""
    if not isinstance(part, ByName) or not isinstance(trees.own, dict) or not isinstance(picked, dict):
        return ""
    return next((str(key) for key in trees.own if key not in picked), "")
