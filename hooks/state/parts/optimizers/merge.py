"""One saved tree of an optimizer from those of several ranks, for a job of other ranks than the one that saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import torch

from .....providers.errors import StateError
from ...sharding.saved_trees import SavedTrees
from .optimizer_tree import Shard, graded, shard, steps


def merge(
    part: str,
    trees: SavedTrees,
    wanted: Set[str],
    params: Mapping[str, torch.Tensor],
    groups_here: int,
    check: Callable[[Any], None],
) -> Any:
    """Return one tree, merged by the parameters' names.

    The groups' numbers come from the rank whose place this rank has. The state of each parameter comes from the
    first rank whose optimizer steps it.

    Args:
        part: the optimizer's registered name.
        trees: the saved trees.
        wanted: names of the parameters that the optimizer steps here.
        params: the parameters that the optimizer knows here, by name.
        groups_here: the number of groups that the optimizer has here. The script added those behind them later.
        check: raises an error unless a tree is of this optimizer and well formed.

    Raises:
        StateError: state of one shard is wanted, and no rank that saved had this shard.
    """
    if trees.alone:
        return trees.own
    check(trees.own)
    later = {n for group in trees.own["param_groups"][groups_here:] for n in group["params"]}
    wanted = wanted | (later & params.keys())
    missing = set(wanted)
    sound: dict[int, dict[str, Any]] = {}
    only_rank = trees.ranks.world == 1
    for _, tree in _each(trees, sound, check):
        if len(tree["param_groups"]) != len(trees.own["param_groups"]):
            return trees.own
        missing.difference_update(steps(tree))
        if not only_rank and not missing:
            break
    used = dict(sound)
    groups = []
    for i, group in enumerate(trees.own["param_groups"]):
        names = [n for rank in sorted(used) for n in used[rank]["param_groups"][i]["params"]]
        kept = [n for n in dict.fromkeys(names) if only_rank or n in wanted]
        groups.append({**group, "params": kept})
    state: dict[str, Any] = {}
    shards: dict[str, Any] = {}
    passed: set[str] = set()
    for tree in used.values():
        for name, values in tree["state"].items():
            if name not in passed and (only_rank or name in params):
                state[name] = values
                if name in tree.get("shards", {}):
                    here = shard(params[name]) if name in params else None
                    state[name], shards[name] = _of_shard(part, name, here, _each(trees, sound, check))
        passed |= {*steps(tree), *tree["state"]}
    on_host = sorted({name for tree in sound.values() for name in tree["on_host"]})
    plain = sorted({name for tree in sound.values() for name in tree.get("plain", [])})
    # A tensor with one name has the same layout on all ranks.
    placed = {
        name: saved_layout for tree in sound.values() for name, saved_layout in tree.get("placed", {}).items()
    }
    more = {"on_host": on_host, "shards": shards, "placed": placed, "plain": plain}
    merged = {**trees.own, "param_groups": groups, "state": state, **more}
    given = {name: each for tree in used.values() for name, each in graded(tree).items()}
    return {**merged, "gradients": "".join(given[name] for name in steps(merged))}


def _each(
    trees: SavedTrees, checked: dict[int, dict[str, Any]], check: Callable[[Any], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Do the work of `SavedTrees.each`, and check each tree first. The checked trees go into `checked`."""
    for rank, tree in trees.each():
        if rank not in checked:
            check(tree)
            checked[rank] = tree
        yield rank, tree


def _of_shard(
    part: str, name: str, here: Shard, each: Iterable[tuple[int, dict[str, Any]]]
) -> tuple[Any, Shard]:
    """Return the saved state of a parameter from a rank that had exactly the shard `here`, and the shard's place."""
    for _, tree in each:
        if here is not None and tree.get("shards", {}).get(name) == here:
            return tree["state"].get(name, {}), here
    raise cannot_be_cut(part, name)


def cannot_be_cut(part: str, name: str) -> StateError:
    """Return the error for state of one shard that this rank cannot use."""
    return StateError(
        f"{part} keeps state of {name!r} that cannot be resharded (factors, or blocks, of one "
        "shard), and no rank that saved had this rank's part of it; resume with the ranks and the "
        f"mesh that saved it, or leave {part} out of register to start it fresh"
    )
