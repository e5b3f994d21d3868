"""From a checkpoint's trees to this rank's: what fits, whose it is, and the memory that each tensor is read into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch

from ...providers.errors import CheckpointError, StateError
from ..format.coverage import MergedTensor
from ..format.dtypes import torch_dtype
from ..format.encoding import decode
from ..format.leaf import Leaf
from .parts import Part, room, tensors_in
from .shards import Memory, Ranks, local
from .unlike import unlike
from .worlds import ByName, Left, Trees, pick, unknown

#: No rank's state stands in for another's.
NOBODY: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Restoring:
    """A checkpoint that fits: its trees, and the memory that each of their tensors is to be read into."""

    #: By registered name; none for what is left as it is.
    trees: Mapping[str, Any]
    #: By the tensor's name in the checkpoint: memory, and the box of the tensor that it is to hold.
    into: Mapping[str, Leaf]
    #: Registered names of the checkpoint that nobody registered here.
    left_out: Sequence[str]
    #: What of the checkpoint is not restored here, and what to do about it.
    warnings: Sequence[str] = ()


@runtime_checkable
class Placed(Protocol):
    """A part that knows where its tensors belong. Others take theirs from the host's memory."""

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterable[Memory]:
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
    ranks: Ranks,
    stand_ins: Mapping[int, int] = NOBODY,
) -> Restoring:
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
    into: dict[str, Leaf] = {}
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
        outlines = Trees(saved, len(states), ranks, lambda tree: decode(tree, names.outline), stand_ins)
        outline = pick(part, outlines)
        if isinstance(outline, Left):
            warnings.append(outline.why)
            continue
        part.targets(outline)
        if outlines.source != ranks.rank and not isinstance(part, ByName):
            taken.setdefault(outlines.source, []).append(part.name)
        if key := unknown(part, outlines, outline):
            warnings.append(
                f"{part.name} has no {key} on this rank (there may be more): that is not restored here"
            )
        if why := unlike(part, entries, len(states), ranks.rank, ranks.world):
            warnings.append(why)
        if isinstance(part, Placed):
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
                into[name] = Leaf(name, made[name])
            return made[name]

        filled = Trees(saved, len(states), ranks, lambda tree, give=give: decode(tree, give), stand_ins)  # type: ignore[misc]
        trees[part.name] = pick(part, filled)
    warnings += [
        f"rank {ranks.rank} goes on with what was rank {other}'s of {', '.join(parts_of_it)}: "
        + _why(ranks.rank, states, stand_ins)
        for other, parts_of_it in sorted(taken.items())
    ]
    left_out = sorted(set(own) - {part.name for part in parts})
    return Restoring(trees, into, left_out, warnings)


def _why(rank: int, states: Sequence[Mapping[str, Any]], stand_ins: Mapping[int, int]) -> str:
    """Why this rank has taken another's."""
    if rank >= len(states):
        return f"the checkpoint is of {len(states)} ranks"
    if rank in stand_ins:
        return "its own were not saved, and were the very same in the full checkpoint before"
    return "its own were not saved"


def _place(
    part: str,
    memories: Iterable[Memory],
    names: _Names,
    into: dict[str, Leaf],
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
        into[name] = Leaf(name, local(tensor), offsets=memory.offsets, shape=memory.shape)


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
