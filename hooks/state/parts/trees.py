"""The saved tree of an optimizer: its form, and a check of that form.

The tree refers to parameters by name. It has `param_groups` with their numbers, the `state` of each parameter, and
under `other` the values with keys of the optimizer's own. `on_host` names the tensors that were in host memory.
`shards` and `placed` record where `factors` are. `plain` names tensors that may be factors although they have their
parameter's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ....providers.errors import CheckpointError
from ..sharding.dtensor import RankOf
from . import optimizer_factors


def steps(tree: dict[str, Any]) -> set[str]:
    """Return the names of the parameters that the saved optimizer stepped."""
    return {name for group in tree["param_groups"] for name in group["params"]}


def check_well_formed(name: str, tree: dict[Any, Any]) -> None:
    """Raise `CheckpointError` unless the tree has the form of an optimizer's, so that reading its fields cannot fail."""
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
    except TypeError:  # a list inside: not a key
        return False
    return not isinstance(value, torch.Tensor)


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
        self._there = place in saved
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
    def was_there(self) -> bool:
        """Return whether the rank whose place this rank has, or its stand-in, saved anything.

        A rank that died before the others saved did not.
        """
        return self._there

    @property
    def alone(self) -> bool:
        """Return whether one process saved everything, and one process restores it."""
        return self.world == 1 and self.ranks.world == 1
