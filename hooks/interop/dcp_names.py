"""What a checkpoint holds, under the names by which `torch.distributed.checkpoint` calls it.

DCP flattens a nested state dict: `{"model": {"fc.weight": …}}` is `model.fc.weight`, and an optimizer's state dict, as
`get_state_dict` gives it, is `optimizer.state.fc.weight.exp_avg` and `optimizer.param_groups.0.lr`. The saved trees hold the
same values, so they are brought into that form and flattened by the very function with which DCP flattens the user's.

What several ranks have each of its own (a scheduler, RNG states, a buffer that nobody shares) has one name there, and is
the first rank's, as with DCP itself. Every tensor also keeps its name in the checkpoint: `@00003/model/bn.running_mean`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ...providers.errors import CheckpointError
from ..checkpoint.format.coverage import Coverage, MergedTensor
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.values.decoder import decode
from ..restore.reader import ReadTarget, parts_of
from ..state.parts.trees import check_well_formed
from ..state.tensor_item import StateTensor

#: Where a value stands in the nested state dict.
Path = tuple[str | int, ...]


class SavedTree(NamedTuple):
    """A saved tree: the rank that saved it, and its registered name."""

    rank: int
    part: str


@dataclass(slots=True)
class FlatCheckpoint:
    """Names to what they stand for."""

    #: The tensor's name in the checkpoint.
    tensors: dict[str, str] = field(default_factory=dict)
    #: The tree that a value that is no tensor is in.
    values: dict[str, SavedTree] = field(default_factory=dict)
    #: Of each name.
    paths: dict[str, Path] = field(default_factory=dict)


def flat(whole: Coverage, *, twice: bool = True) -> FlatCheckpoint:
    """Every name that DCP has for what is in a checkpoint.

    Args:
        twice: an optimizer's values also by the names of `flatten_optimizer_state_dict`.

    Raises:
        CheckpointError: the state is not as this version writes it.
        StateError: it needs a library that is not here.
    """
    found = FlatCheckpoint()
    seen: dict[str, list[Any]] = {}
    for manifest in whole.manifests:
        for part, raw in manifest.state.items():
            if raw in (before := seen.setdefault(part, [])):
                continue  # FSDP's ranks say the same of their model: looked at once
            before.append(raw)
            source = SavedTree(manifest.rank, part)
            outline = _Outline(whole.tensors)
            leaves, paths = _leaves(whole, source, outline.give, twice)
            for name, value in leaves.items():
                if name in found.paths:
                    continue
                found.paths[name] = paths[name]
                tensor = outline.name_of(value)
                if tensor is not None:
                    found.tensors[name] = tensor
                else:
                    found.values[name] = source
    return found


def values_of(whole: Coverage, source: SavedTree, inner: list[ReadTarget]) -> Mapping[str, Any]:
    """What a saved tree holds by its names, tensors left out, but for those inside of a value (a tuple of them): these
    are whole when `inner`, which is added to, has been read."""
    outline = _Outline(whole.tensors)
    leaves, _ = _leaves(whole, source, outline.give)
    within = outline.within(leaves)
    real: dict[str, torch.Tensor] = {}

    def give(name: str) -> torch.Tensor:
        if name not in within:
            return outline.give(name)
        if name not in real:
            entry = _entry(whole.tensors, name)
            real[name] = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="cpu")
            inner.extend(parts_of(whole, entry, StateTensor(name, real[name])))
        return real[name]

    return _leaves(whole, source, give)[0]


class _Outline:
    """Tensors that have no memory, and say whose they stand for."""

    def __init__(self, entries: Mapping[str, MergedTensor]) -> None:
        self._entries = entries
        #: By their storage, which a `Parameter` made of one shares. Held: an address may be given anew.
        self._given: dict[int, tuple[torch.Tensor, str]] = {}

    def give(self, name: str) -> torch.Tensor:
        entry = _entry(self._entries, name)
        made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
        self._given[made.untyped_storage()._cdata] = (made, name)
        return made

    def name_of(self, value: Any) -> str | None:
        """None for what is none of them."""
        if not isinstance(value, torch.Tensor):
            return None
        return self._given[value.untyped_storage()._cdata][1]

    def within(self, leaves: Mapping[str, Any]) -> set[str]:
        """The names of those that are no leaf, but stand inside of one."""
        alone = {
            value.untyped_storage()._cdata for value in leaves.values() if isinstance(value, torch.Tensor)
        }
        return {name for place, (_, name) in self._given.items() if place not in alone}


def _entry(entries: Mapping[str, MergedTensor], name: str) -> MergedTensor:
    if (entry := entries.get(name)) is None:
        raise CheckpointError(f"its state names tensor {name!r}, and no rank wrote it")
    return entry


def _leaves(
    whole: Coverage, source: SavedTree, give: Callable[[str], torch.Tensor], twice: bool = True
) -> tuple[dict[str, Any], dict[str, Path]]:
    """A saved tree's values by DCP's names, and their paths; nothing where two would have one name, which no user's
    state dict could ask for either."""
    state = whole.manifests[source.rank].state
    raw = state[source.part]
    if is_optimizer(raw):
        raw = {key: value for key, value in raw.items() if key != "other"}  # no state dict of torch's has it
    tree = decode(raw, give)
    leaves: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for form in _forms(source.part, tree, state)[: 2 if twice else 1]:
        try:
            values, mapping = flatten_state_dict({source.part: form})
        except ValueError:  # two of one name
            continue
        leaves.update(values)
        paths.update(mapping)
    return leaves, paths


def _forms(part: str, tree: Any, registered: Mapping[str, Any]) -> list[Any]:
    """A tree as `get_state_dict` would give it; an optimizer's also as with `flatten_optimizer_state_dict`."""
    if not is_optimizer(tree):
        return [tree]
    check_well_formed(part, tree)

    def short(name: str) -> str:
        """A parameter's name in its module: "fc.weight" for "model/fc.weight"."""
        module, _, key = name.partition("/")
        return key if key and module in registered else name

    groups = [
        {**group, "params": [short(name) for name in group["params"]]} for group in tree["param_groups"]
    ]
    state = {short(name): values for name, values in tree["state"].items()}
    numbers = {
        f"param_groups.{name}.{key}": value
        for group in groups
        for name in group["params"]
        for key, value in group.items()
        if key != "params"
    }
    return [{"state": state, "param_groups": groups}, numbers]


def is_optimizer(tree: Any) -> bool:
    """Whether this is the tree of a registered optimizer."""
    return isinstance(tree, dict) and tree.keys() >= {"class", "param_groups", "state", "on_host"}
