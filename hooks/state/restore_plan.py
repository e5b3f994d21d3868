"""From a checkpoint's trees to this rank's: what fits, whose it is, and the memory that each tensor is read into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from ...providers.errors import CheckpointError, StateError
from ..checkpoint.format.coverage import MergedTensor
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.manifest import private_name
from ..checkpoint.format.values.decoder import decode
from .parts.loaders import is_position
from .parts.module import KnownTensor
from .parts.rng import RngPart
from .parts.trees import SavedTrees
from .parts.values import Part, StatefulPart, room, tensors_in
from .sharding.dtensor import RankOf, TargetMemory, local
from .tensor_item import StateTensor

#: No rank's state stands in for another's.
NOBODY: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A checkpoint that fits: its trees, and the memory that each of their tensors is to be read into."""

    #: By registered name; none for what is left as it is.
    trees: Mapping[str, Any]
    #: By the tensor's name in the checkpoint: memory, and the box of the tensor that it is to hold.
    into: Mapping[str, StateTensor]
    #: Registered names of the checkpoint that nobody registered here.
    left_out: Sequence[str]
    #: What of the checkpoint is not restored here, and what to do about it.
    warnings: Sequence[str] = ()


@runtime_checkable
class PlacedPart(Protocol):
    """A part that knows where its tensors belong. Others take theirs from the host's memory."""

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterable[TargetMemory]:
        """For the tensors of an outline that fits (`targets`).

        Args:
            tree: the outline.
            name_of: a tensor's name in the checkpoint.
        """
        ...


def plan(
    parts: Sequence[Part],
    states: Sequence[Mapping[str, Any]],
    entries: Mapping[str, MergedTensor],
    ranks: RankOf,
    stand_ins: Mapping[int, int] = NOBODY,
) -> RestorePlan:
    """Check that a checkpoint fits, before a byte is written, and say where each tensor goes.

    Args:
        parts: what is registered here.
        states: of each rank of the saved job, in order: encoded trees by registered name.
        entries: the checkpoint's tensors by name.
        ranks: which of the ranks of the job that goes on this is.
        stand_ins: by rank that said nothing, the one whose state is its own too.

    Raises:
        StateError: it does not fit.
        CheckpointError: it is not as this version writes it.
    """
    names = _Names(entries)
    trees: dict[str, Any] = {}
    into: dict[str, StateTensor] = {}
    made: dict[str, torch.Tensor] = {}
    warnings: list[str] = []
    #: By the rank whose they were: names that were not this rank's.
    taken: dict[int, list[str]] = {}
    place = ranks.rank % len(states)
    own = states[place] or states[stand_ins.get(place, place)] or next(filter(None, states), {})
    for part in parts:
        saved = {rank: state[part.name] for rank, state in enumerate(states) if part.name in state}
        if not saved:
            held = ", ".join(sorted(own))
            raise StateError(
                f"the checkpoint holds no {part.name!r} (it holds {held}); register the same names, "
                "or start another run id"
            )
        outlines = SavedTrees(saved, len(states), ranks, lambda tree: decode(tree, names.outline), stand_ins)
        outline = pick(part, outlines)
        if isinstance(outline, LeftOut):
            warnings.append(outline.why)
            continue
        part.targets(outline)
        if outlines.source != ranks.rank and not isinstance(part, MergedByName):
            taken.setdefault(outlines.source, []).append(part.name)
        if key := unknown(part, outlines, outline):
            warnings.append(
                f"{part.name} has no {key} on this rank (there may be more): that is not restored here"
            )
        if why := unlike(part, entries, len(states), ranks.rank, ranks.world):
            warnings.append(why)
        if isinstance(part, PlacedPart):
            _place(part.name, part.memory(outline, names.of), names, into, made)
        wanted = {names.of(tensor) for tensor in tensors_in(outline)}
        seen = {names.of(tensor) for tree in outlines.decoded for tensor in tensors_in(tree)}

        def give(name: str, unwanted: set[str] = seen - wanted) -> torch.Tensor:
            if name in unwanted:
                return names.outline(name)
            if name not in made:
                entry = entries[name]
                with room(name):
                    made[name] = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="cpu")
                into[name] = StateTensor(name, made[name])
            return made[name]

        filled = SavedTrees(saved, len(states), ranks, lambda tree, give=give: decode(tree, give), stand_ins)  # type: ignore[misc]
        trees[part.name] = pick(part, filled)
    warnings += [
        f"rank {ranks.rank} goes on with what was rank {other}'s of {', '.join(parts_of_it)}: "
        + _why(ranks.rank, states, stand_ins)
        for other, parts_of_it in sorted(taken.items())
    ]
    left_out = sorted(set(own) - {part.name for part in parts})
    return RestorePlan(trees, into, left_out, warnings)


def _why(rank: int, states: Sequence[Mapping[str, Any]], stand_ins: Mapping[int, int]) -> str:
    """Why this rank has taken another's."""
    if rank >= len(states):
        return f"the checkpoint is of {len(states)} ranks"
    if rank in stand_ins:
        return "its own were not saved, and were the very same in the full checkpoint before"
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
        if (there := into.get(name)) is not None:
            if (there.offsets, there.shape, there.tensor.shape) != (
                memory.offsets,
                memory.shape,
                local(tensor).shape,
            ):
                raise StateError(
                    f"{part} holds twice, and sharded in two ways, what is one tensor in the checkpoint ({name}); "
                    "shard both alike"
                )
            continue  # read once, and copied to the other
        if id(tensor) in taken:  # one tensor here, two in the checkpoint: the later one's bytes stay
            tensor = torch.empty_like(tensor)
        taken.add(id(tensor))
        made[name] = tensor
        into[name] = StateTensor(name, local(tensor), offsets=memory.offsets, shape=memory.shape)


class _Names:
    """The checkpoint's tensors without their memory, and which is which."""

    def __init__(self, entries: Mapping[str, MergedTensor]) -> None:
        self._entries = entries
        self._outlines: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def outline(self, name: str) -> torch.Tensor:
        if name not in self._outlines:
            if (entry := self._entries.get(name)) is None:
                raise CheckpointError(f"its state names tensor {name!r}, and no rank wrote it")
            made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
            self._outlines[name] = made
            self._names[_storage(made)] = name
        return self._outlines[name]

    def of(self, outline: torch.Tensor) -> str:
        """By its storage: a parameter that was made of it is another object."""
        return self._names[_storage(outline)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# Parameters that each rank of the saved job had for itself, by one name, and in which they differed.
#
# Replicas that nobody declares are alike, and it is all the same whose a rank takes. Stages of a pipeline that are named alike
# are not: among as many ranks each has its own again, and among another number most would silently train somebody else's.
# (Buffers of replicas may differ: each has its own statistics.)

#: Parameters that a warning names.
_NAMED = 3


@runtime_checkable
class NamedPart(Protocol):
    """A part that holds parameters."""

    def named(self) -> Mapping[int, KnownTensor]:
        """Each live tensor, by its id."""
        ...


def unlike(part: object, entries: Mapping[str, MergedTensor], saved: int, rank: int, world: int) -> str:
    """What to warn of, where so many ranks go on with what was saved by another number; or nothing.

    Args:
        entries: the checkpoint's tensors by name.
        saved: how many ranks have saved it.
        rank: who goes on, of `world`.
    """
    if saved == world or not isinstance(part, NamedPart):
        return ""
    held = [each.name for each in part.named().values() if isinstance(each.tensor, nn.Parameter)]
    names = [name for name in held if _differs(name, entries, saved)]
    if not names:
        return ""
    few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"{few} differed between the {saved} ranks that saved them, each its own, and rank {rank} of {world} goes on with those "
        f"of rank {rank % saved}: name a pipeline stage's layers by their places in the whole model, and wrap replicas"
    )


def _differs(name: str, entries: Mapping[str, MergedTensor], saved: int) -> bool:
    own = (entries.get(private_name(rank, name)) for rank in range(saved))
    return len({_said(each) for each in own if each is not None}) > 1


def _said(entry: MergedTensor) -> tuple[object, ...]:
    """Ranks that hold the same have cut it alike, for all of them go by shapes and sizes."""
    chunks = frozenset((chunk.offsets, chunk.sizes, chunk.crc32) for _, chunk in entry.chunks)
    return entry.dtype, entry.shape, chunks


# Whose state a rank goes on with, when the job that goes on may have other ranks than the one that saved.
#
# - What has a name goes by its name: parameters, buffers, and what optimizers keep of them. A rank looks in the tree of the
# rank whose place it has, and for what is not there (another pipeline stage's) in the others'. Which part of a tensor
# it wants is its own layout's business.
# - A random number generator goes on only where the same rank did: two ranks with one state would draw the same dropout,
# so that of a rank that did not exist stays as it is, and says so.
# - A loader counts what one rank of so many has read. Among another number of ranks its position means other samples, some
# of them twice and some never: it is left at its beginning, and says so.
# - Of a rank that had died before the others saved, both are lost: who has its place keeps what it has, and says so.
# - Everything else (schedulers, scalers, dicts) is nearly always the same on all ranks, and a rank that is new takes
# that of rank mod the saved job's ranks, one whose own is lost that of the first rank that was there. Both say whose.
#
# With the same number of ranks each takes its own of all of these.


@runtime_checkable
class MergedByName(Protocol):
    """A part whose state is found by the names of what it belongs to, in the tree of whichever rank has it."""

    def merge(self, trees: SavedTrees) -> Any:
        """One tree, of what this rank holds."""
        ...


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Nothing of the checkpoint is for this part here."""

    why: str


def pick(part: Part, trees: SavedTrees) -> Any:
    """The tree that this rank goes on with, or why there is none (`LeftOut`)."""
    if isinstance(part, MergedByName):
        return part.merge(trees)
    rank, world = trees.ranks.rank, trees.ranks.world
    if isinstance(part, RngPart) and rank >= trees.world:
        return LeftOut(
            f"the checkpoint is of {trees.world} ranks, and rank {rank} was none of them: its random number "
            "generators stay as they are"
        )
    position = isinstance(part, StatefulPart) and is_position(part.value)
    if (isinstance(part, RngPart) or position) and not trees.was_there:
        return LeftOut(
            f"rank {rank} was not there any more when the others saved: {part.name} of its own is lost, and stays as it is"
        )
    if world != trees.world and isinstance(part, StatefulPart) and is_position(part.value):
        return LeftOut(
            f"{part.name} counts the samples of one of {trees.world} ranks and is not restored for {world}: keep the "
            "count of samples of all ranks in a registered dict, and skip as many"
        )
    return trees.own


def unknown(part: Part, trees: SavedTrees, picked: Any) -> str:
    """The first name that the tree of the rank whose place this one has holds and this rank does not; "" if none."""
    if not isinstance(part, MergedByName) or not isinstance(trees.own, dict) or not isinstance(picked, dict):
        return ""
    return next((str(key) for key in trees.own if key not in picked), "")
