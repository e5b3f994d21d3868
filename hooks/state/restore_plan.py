"""From a checkpoint's trees to this rank's: whether they fit, which rank's state to use, and the memory for each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ...providers.errors import CheckpointError, StateError, UsageError
from ..checkpoint.format.coverage import MergedTensor
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.manifest import private_name
from ..checkpoint.format.values.decoder import decode
from ..checkpoint.format.values.meeting import with_live
from .inventory.looks import memory_like
from .inventory.ties import FilledTensor, check_overlaps, check_ties, content
from .inventory.walk import tensors_in
from .memory_access import expanded
from .misuse.loaded_otherwise import LoadedOtherwise
from .parts.loaders.part import is_position
from .parts.module import ModulePart
from .parts.rng import RngPart
from .parts.values import DictPart, Part, StatefulPart, room
from .sharding.dtensor import RankOf, TargetMemory, local
from .sharding.saved_trees import SavedTrees
from .state_tensor import StateTensor

#: No rank's state replaces another's.
NOBODY: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A checkpoint that fits: its trees, and the memory that each tensor is read into."""

    #: Trees by registered name. A part that the restore leaves unchanged has no tree here.
    trees: Mapping[str, Any]
    #: By the tensor's name in the checkpoint: the memory, and the box of the tensor that the memory holds.
    into: Mapping[str, StateTensor]
    #: Names in the checkpoint that are not registered here.
    left_out: Sequence[str]
    #: One line for each value that is not restored here or comes from another rank, with what to do about it.
    warnings: Sequence[str] = ()
    #: The checkpoint's tensors by name.
    entries: Mapping[str, MergedTensor] = field(default_factory=dict)
    #: Live tensors that overlap others. What is read into one may overwrite another.
    overlapping: Sequence[FilledTensor] = ()


def plan(
    parts: Sequence[Part],
    states: Sequence[Mapping[str, Any]],
    entries: Mapping[str, MergedTensor],
    ranks: RankOf,
    stand_ins: Mapping[int, int] = NOBODY,
    missing: Set[str] = frozenset(),
) -> RestorePlan:
    """Check that a checkpoint fits, and return the memory for each tensor. Nothing is written yet.

    Args:
        parts: the parts registered here.
        states: the encoded trees by registered name, for each rank of the job that saved, in rank order.
        entries: the checkpoint's tensors by name.
        ranks: this process's rank in the resumed job, and the number of its ranks.
        stand_ins: for a rank that saved no state, the rank whose state is identical to it.
        missing: names of parts that the checkpoint may lack. Such a part keeps its value.

    Raises:
        StateError: the checkpoint does not fit.
        CheckpointError: the checkpoint does not have the form that this version writes.
    """
    names = _Names(entries)
    trees: dict[str, Any] = {}
    into: dict[str, StateTensor] = {}
    made: dict[str, torch.Tensor] = {}
    live: list[FilledTensor] = []
    warnings: list[str] = []
    #: Names of parts that this rank takes from another rank's state, by that rank.
    taken: dict[int, list[str]] = {}
    place = ranks.rank % len(states)
    own = states[place] or states[stand_ins.get(place, place)] or next(filter(None, states), {})
    for part in parts:
        saved = {rank: state[part.name] for rank, state in enumerate(states) if part.name in state}
        if not saved and part.name in missing:
            warnings.append(f"the checkpoint has no {part.name!r}: it keeps the value that it has now")
            continue
        if not saved:
            held = ", ".join(sorted(own))
            raise StateError(
                f"the checkpoint holds no {part.name!r} (it holds {held}); register the same names, choose another "
                f"run id, or, if {part.name!r} is new, call guard.restore(missing=({part.name!r},)) [SG602]"
            )
        outlines = SavedTrees(saved, len(states), ranks, lambda tree: decode(tree, names.outline), stand_ins)
        outline = pick(part, outlines)
        if isinstance(outline, LeftOut):
            warnings.append(outline.why)
            continue
        try:
            part.targets(outline)
        except StateError as error:
            if len(states) == ranks.world:
                raise
            raise StateError(
                f"{error}. The checkpoint is of {len(states)} ranks, and this job has {ranks.world}: if each rank held a part "
                f"of {part.name}, start {len(states)} again"
            ) from error
        if outlines.source != ranks.rank and not part.by_name:
            taken.setdefault(outlines.source, []).append(part.name)
        if key := unknown(part, outlines, outline):
            warnings.append(
                f"{part.name} has no {key} on this rank (there may be more): that is not restored here"
            )
        if why := unlike(part, entries, len(states), ranks.rank, ranks.world):
            warnings.append(why)
        memories = [*part.memory(outline, names.of)]
        _place(part.name, memories, names, into, made)
        live += [
            FilledTensor(each.path, each.live, entries[names.of(each.outline)])
            for each in memories
            if each.live is not None and each.path
        ]
        wanted = {names.of(tensor): tensor for tensor in tensors_in(outline)}
        if not part.named():
            gaps = [name for name, tensor in wanted.items() if expanded(tensor)]
            warnings += [
                f"{name} had gaps in its memory when it was saved: it comes back dense [SG606]"
                for name in gaps
            ]
        seen = {names.of(tensor) for tree in outlines.decoded for tensor in tensors_in(tree)}

        unwanted = seen - wanted.keys()

        def give(
            name: str, unwanted: set[str] = unwanted, wanted: dict[str, torch.Tensor] = wanted
        ) -> torch.Tensor:
            if name in unwanted:
                return names.outline(name)
            if name not in made:
                with room(name):
                    made[name] = memory_like(wanted.get(name, names.outline(name)))
                into[name] = StateTensor(name, made[name])
            return made[name]

        filled = SavedTrees(saved, len(states), ranks, lambda tree, give=give: decode(tree, give), stand_ins)  # type: ignore[misc]
        tree = pick(part, filled)
        # A dict's own values meet the saved ones when it is filled.
        trees[part.name] = tree if isinstance(part, DictPart) else with_live(tree, part.tree())
    warnings += [
        f"rank {ranks.rank} resumes with rank {other}'s {', '.join(parts_of_it)}: "
        + _why(ranks.rank, states, stand_ins)
        for other, parts_of_it in sorted(taken.items())
    ]
    apart, overlapping = check_ties(live)
    left_out = sorted(set(own) - {part.name for part in parts})
    return RestorePlan(trees, into, left_out, warnings + apart, entries, overlapping)


def may_be_missing(parts: Sequence[Part], names: Iterable[str]) -> frozenset[str]:
    """Return the names of parts that a checkpoint may lack. Note in each part the names below modules that it may lack.

    Raises:
        UsageError: nothing is registered under one of the names.
    """
    wanted = (names,) if isinstance(names, str) else tuple(names)
    registered = [part.name for part in parts if not isinstance(part, RngPart)]
    below: set[str] = set()
    for name in wanted:
        found = {each for part in parts if isinstance(part, ModulePart) for each in part.below(name)}
        if name not in registered and not found:
            raise UsageError(
                f"missing={wanted!r}: nothing is registered as {name!r}; expected one of {', '.join(registered)}, or the path of "
                "a layer, such as 'model.head'"
            )
        below |= found
    for part in parts:
        part.may_lack = frozenset(below)
    return frozenset(wanted)


def put_back(parts: Sequence[Part], restoring: RestorePlan) -> list[str]:
    """Give every object its tree. All tensors are filled and verified before this call. Return the warnings, one line each.

    Raises:
        StateError: an object's own code refuses the saved state, or has another state afterwards.
    """
    warnings, check = [*restoring.warnings], LoadedOtherwise(restoring.into, restoring.entries)
    dicts = [part.name for part in parts if isinstance(part, DictPart) and part.name in restoring.trees]
    for part in sorted(
        parts, key=lambda part: isinstance(part, DictPart)
    ):  # a dict may list what the others restore
        if part.name in restoring.trees:
            check.begin(part, restoring.trees[part.name])
            if isinstance(part, DictPart) and part.name == dicts[0]:
                part.begin(restoring.trees)
            part.put_back(restoring.trees[part.name])
            check.end(part, restoring.trees[part.name])
            warnings += part.said
    check_overlaps(restoring.overlapping)
    check.compare(parts)
    warnings += check.said
    if names := ", ".join(restoring.left_out):
        warnings.append(
            f"the checkpoint also holds {names}, which this process has not registered: not restored"
        )
    return warnings


def _why(rank: int, states: Sequence[Mapping[str, Any]], stand_ins: Mapping[int, int]) -> str:
    """Return why this rank uses the state of another rank."""
    if rank >= len(states):
        return f"the checkpoint was saved by {len(states)} ranks"
    if rank in stand_ins:
        return "its own were not saved, and were identical in the full checkpoint before"
    return "its own were not saved"


def _place(
    part: str,
    memories: Iterable[TargetMemory],
    names: _Names,
    into: dict[str, StateTensor],
    made: dict[str, torch.Tensor],
) -> None:
    taken: set[int] = set()
    for memory in memories:
        name = names.of(memory.outline)
        tensor = memory.tensor
        if (existing := into.get(name)) is not None:
            if (existing.offsets, existing.shape, existing.tensor.shape) != (
                memory.offsets,
                memory.shape,
                local(tensor).shape,
            ):
                raise StateError(
                    f"{part} holds one tensor of the checkpoint ({name}) twice, sharded in two ways; "
                    "shard both alike"
                )
            continue  # the restore reads the tensor once, and copies it to the other parameter
        # One tensor here is two tensors in the checkpoint, which are equal (`check_ties`).
        if id(tensor) in taken:
            tensor = torch.empty_like(tensor)
        taken.add(id(tensor))
        made[name] = tensor
        into[name] = StateTensor(name, local(tensor), offsets=memory.offsets, shape=memory.shape)


class _Names:
    """The checkpoint's tensors as outlines without memory, and the name of each outline."""

    def __init__(self, entries: Mapping[str, MergedTensor]) -> None:
        self._entries = entries
        self._outlines: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def outline(self, name: str) -> torch.Tensor:
        if name not in self._outlines:
            if (entry := self._entries.get(name)) is None:
                raise CheckpointError(f"its state names tensor {name!r}, but no rank wrote it")
            made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
            self._outlines[name] = made
            self._names[_storage(made)] = name
        return self._outlines[name]

    def of(self, outline: torch.Tensor) -> str:
        """Return the name by the outline's storage: a parameter made from an outline is another object on the same
        storage.
        """
        return self._names[_storage(outline)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# Parameters that each rank of the saved job held under one name for itself, and whose values differ between ranks.
#
# Replicas may be undeclared. Their values are equal, so any rank's copy serves. Pipeline stages with equal names hold
# different values. With the same number of ranks each rank gets its own again. With another number most ranks would
# silently train another stage's parameters. (Buffers of replicas may differ: each replica has its own statistics.)

#: The most parameters that a warning names.
_NAMED = 3


def unlike(part: Part, entries: Mapping[str, MergedTensor], saved: int, rank: int, world: int) -> str:
    """Return a warning if the number of ranks changed and ranks saved different parameters under one name; "" otherwise.

    Args:
        part: a registered part.
        entries: the checkpoint's tensors by name.
        saved: the number of ranks that saved the checkpoint.
        rank: this process's rank in the resumed job.
        world: the number of ranks in the resumed job.
    """
    if saved == world:
        return ""
    held = [each.name for each in part.named().values() if isinstance(each.tensor, nn.Parameter)]
    names = [name for name in held if _differs(name, entries, saved)]
    if not names:
        return ""
    few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"{few} differed between the {saved} ranks that saved them, and rank {rank} of {world} resumes "
        f"with those of rank {rank % saved}: name the layers of a pipeline stage by their positions in "
        "the full model, and wrap replicas"
    )


def _differs(name: str, entries: Mapping[str, MergedTensor], saved: int) -> bool:
    own = (entries.get(private_name(rank, name)) for rank in range(saved))
    return len({content(each) for each in own if each is not None}) > 1


# The rules for whose state a rank resumes with. The resumed job may have other ranks than the job that saved.
#
# - Parameters, buffers and the state that optimizers keep of them go by name. A rank reads the tree of the rank whose
#   place it has. It searches the other trees for names that are missing there, such as another pipeline stage's. The
#   layout of its own tensor selects the part of a tensor that it reads.
# - A random number generator resumes only on the rank that saved it: two ranks with one state would draw the same
#   dropout. On a rank that did not exist, the generator stays as it is, and a warning reports this.
# - A loader counts the samples that one of N ranks has read. With another number of ranks its position means other
#   samples, some read twice and some never. Such a loader stays at its beginning, and a warning reports this.
# - If a rank died before the others saved, both its generator and its loader position are lost. The rank with its
#   place keeps the state that it has, and a warning reports this.
# - Everything else (schedulers, scalers, dicts) is nearly always equal on all ranks. A new rank takes the state of
#   its rank modulo the number of saved ranks. A rank whose own state is lost takes that of the first rank that saved.
#   A warning names the source in both cases.
#
# With the same number of ranks, each rank takes its own state for all of these.


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The result for a part that takes nothing from the checkpoint."""

    why: str


def pick(part: Part, trees: SavedTrees) -> Any:
    """Return the tree that this rank resumes with, or a `LeftOut` with the reason why there is none."""
    rank, world = trees.ranks.rank, trees.ranks.world
    if isinstance(part, RngPart) and rank >= trees.world:
        return LeftOut(
            f"the checkpoint was saved by {trees.world} ranks, and rank {rank} was not one of them: its "
            "random number generators stay as they are"
        )
    is_loader = isinstance(part, StatefulPart) and is_position(part.value)
    if (isinstance(part, RngPart) or is_loader) and not trees.was_there:
        return LeftOut(
            f"rank {rank} was gone when the other ranks saved: its own {part.name} is lost, and stays as "
            "it is"
        )
    if world != trees.world and is_loader:
        return LeftOut(
            f"{part.name} counts the samples of one of {trees.world} ranks and is not restored for "
            f"{world}: keep the count of samples of all ranks in a registered dict, and skip that many"
        )
    return part.merge(trees)


def unknown(part: Part, trees: SavedTrees, picked: Any) -> str:
    """Return the first name that this rank does not hold, of the tree whose place it has; "" if there is none."""
    if not part.by_name or not isinstance(trees.own, dict) or not isinstance(picked, dict):
        return ""
    return next((str(key) for key in trees.own if key not in picked), "")
