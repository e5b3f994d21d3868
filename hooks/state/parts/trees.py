"""The tree of an optimizer as it is saved: what stands in it, and whether somebody wrote it so.

By the parameters' names: `param_groups` with their numbers, the `state` of each parameter, and under `other` what was kept
under keys of the optimizer's own. `on_host` names the tensors that were in the host's memory; `shards` and `placed` say where
`factors` lie, and `plain` which tensors may be some though they have their parameter's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ....providers.errors import CheckpointError
from ..sharding.dtensor import RankOf
from . import optimizer_factors


def steps(tree: dict[str, Any]) -> set[str]:
    """The names of the parameters that the saved optimizer stepped."""
    return {name for group in tree["param_groups"] for name in group["params"]}


def check_well_formed(name: str, tree: dict[Any, Any]) -> None:
    """Raise `CheckpointError` unless this is the tree of some optimizer, so that taking it apart cannot fail."""
    groups, state = tree["param_groups"], tree.get("state")
    on_host, other = tree.get("on_host"), tree.get("other", [])
    wrong = ""
    if not (
        isinstance(groups, list) and all(isinstance(g, dict) and _words(g.get("params")) for g in groups)
    ):
        wrong = "param_groups"
    elif not (isinstance(state, dict) and _words(list(state))):
        wrong = "state"
    elif not _words(on_host):
        wrong = "on_host"
    elif not (
        isinstance(other, list) and all(type(p) is tuple and len(p) == 2 and _is_key(p[0]) for p in other)
    ):
        wrong = "other"
    elif not optimizer_factors.well_formed(tree.get("shards", {}), tree.get("placed", {})):
        wrong = "shards"
    elif not _words(tree.get("plain", [])):
        wrong = "plain"
    if wrong:
        raise CheckpointError(f"{name}: the saved optimizer's {wrong!r} is not as it is written")


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is str for each in value)


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # a list inside: the question is answered
        return False
    return not isinstance(value, torch.Tensor)


class SavedTrees:
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
