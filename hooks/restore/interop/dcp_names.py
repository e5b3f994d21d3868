"""Contents of a checkpoint under the names that `torch.distributed.checkpoint` (DCP) uses.

DCP flattens a nested state dict: `{"model": {"fc.weight": …}}` becomes `model.fc.weight`. An optimizer's state dict
from `get_state_dict` becomes `optimizer.state.fc.weight.exp_avg` and `optimizer.param_groups.0.lr`. The saved trees
hold the same values. So this module brings them into that form, and flattens them with the function that DCP uses
for the user's state dict.

Several ranks may each have their own value: a scheduler, RNG states, a buffer that is not shared. DCP has one name
for all of them, and that name gives the first rank's value, as with DCP itself. Every tensor also keeps its name in
the checkpoint: `@00003/model/bn.running_mean`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ....providers.errors import CheckpointError
from ...checkpoint.format.coverage import Coverage, MergedTensor
from ...checkpoint.format.dtypes import torch_dtype
from ...checkpoint.format.values.decoder import decode
from ...checkpoint.format.values.meeting import with_live
from ...state.parts.optimizers.optimizer_tree import check_well_formed
from ...state.state_tensor import StateTensor
from ..reads.resharding import ReadTarget, parts_of

#: Path of a value in the nested state dict.
Path = tuple[str | int, ...]


class SavedTree(NamedTuple):
    """A saved tree: the rank that saved it, and its registered name."""

    rank: int
    part: str


@dataclass(slots=True)
class FlatCheckpoint:
    """Contents of a checkpoint by DCP's names."""

    #: Name in the checkpoint of each tensor.
    tensors: dict[str, str] = field(default_factory=dict)
    #: Tree of each value that is not a tensor.
    values: dict[str, SavedTree] = field(default_factory=dict)
    #: Path of each name.
    paths: dict[str, Path] = field(default_factory=dict)


def flat(whole: Coverage, *, twice: bool = True) -> FlatCheckpoint:
    """Return every name that DCP has for the contents of a checkpoint.

    Args:
        whole: the checkpoint.
        twice: whether an optimizer's values also get the names of `flatten_optimizer_state_dict`.

    Raises:
        CheckpointError: the state is not in the form that this version writes.
        StateError: the state needs a library that is not installed.
    """
    contents = FlatCheckpoint()
    seen: dict[str, list[Any]] = {}
    for manifest in whole.manifests:
        for part, raw in manifest.state.items():
            if raw in (before := seen.setdefault(part, [])):
                continue  # FSDP's ranks save the same tree of their model: read it once
            before.append(raw)
            source = SavedTree(manifest.rank, part)
            outline = _Outline(whole.tensors)
            state_tensors, paths = _leaves(whole, source, outline.give, twice)
            for name, value in state_tensors.items():
                if name in contents.paths:
                    continue
                contents.paths[name] = paths[name]
                tensor = outline.name_of(value)
                if tensor is not None:
                    contents.tensors[name] = tensor
                else:
                    contents.values[name] = source
    return contents


def values_of(whole: Coverage, source: SavedTree, inner: list[ReadTarget]) -> Mapping[str, Any]:
    """Return the values of a saved tree by DCP's names, with outlines in place of tensors.

    Tensors inside a value (a tuple of them) are real. Their reads are appended to `inner`, and they are complete
    when the caller has read these.
    """
    outline = _Outline(whole.tensors)
    state_tensors, _ = _leaves(whole, source, outline.give)
    within = outline.within(state_tensors)
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
    """Tensors without memory, each in place of a tensor of the checkpoint."""

    def __init__(self, entries: Mapping[str, MergedTensor]) -> None:
        self._entries = entries
        #: Outlines by storage, which a `Parameter` made of one shares. The reference keeps the address from being
        #: given again.
        self._given: dict[int, tuple[torch.Tensor, str]] = {}

    def give(self, name: str) -> torch.Tensor:
        entry = _entry(self._entries, name)
        made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
        self._given[made.untyped_storage()._cdata] = (made, name)
        return made

    def name_of(self, value: Any) -> str | None:
        """Return the name of the tensor that the outline `value` replaces; None if `value` is not a tensor."""
        if not isinstance(value, torch.Tensor):
            return None
        return self._given[value.untyped_storage()._cdata][1]

    def within(self, state_tensors: Mapping[str, Any]) -> set[str]:
        """Return the names of the outlines that are not values themselves, but stand inside of one."""
        alone = {
            value.untyped_storage()._cdata
            for value in state_tensors.values()
            if isinstance(value, torch.Tensor)
        }
        return {name for place, (_, name) in self._given.items() if place not in alone}


def _entry(entries: Mapping[str, MergedTensor], name: str) -> MergedTensor:
    if (entry := entries.get(name)) is None:
        raise CheckpointError(f"its state names tensor {name!r}, but no rank wrote it")
    return entry


def _leaves(
    whole: Coverage, source: SavedTree, give: Callable[[str], torch.Tensor], twice: bool = True
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return a saved tree's values by DCP's names, and their paths.

    A form of the tree in which two values would get one name is left out. No user's state dict could ask for such a
    name either.
    """
    state = whole.manifests[source.rank].state
    raw = state[source.part]
    if is_optimizer(raw):
        # torch's state dicts do not have it
        raw = {key: value for key, value in raw.items() if key != "other"}
    tree = with_live(decode(raw, give), plain=True)
    state_tensors: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for form in _forms(source.part, tree, state)[: 2 if twice else 1]:
        try:
            values, mapping = flatten_state_dict({source.part: form})
        except ValueError:  # two values with one name
            continue
        state_tensors.update(values)
        paths.update(mapping)
    return state_tensors, paths


def _forms(part: str, tree: Any, registered: Mapping[str, Any]) -> list[Any]:
    """Return a tree in the form of `get_state_dict`.

    For an optimizer, a second form follows, as with `flatten_optimizer_state_dict`.
    """
    if isinstance(tree, dict) and tree.keys() == {"class", "state"}:
        return [tree["state"]]  # of a scheduler
    if not is_optimizer(tree):
        return [tree]
    check_well_formed(part, tree)

    def short(name: str) -> str:
        """Return a parameter's name in its module: "fc.weight" for "model/fc.weight"."""
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
