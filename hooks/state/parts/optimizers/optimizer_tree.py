"""The saved tree of an optimizer: its form, and a check of it.

It may hold state in another shape than its parameter's: factors of a variance (Adafactor), preconditioners (Shampoo), numbers of
blocks (8-bit Adam).

A moment is beside its parameter, and a restore cuts it like the parameter for any number of ranks. Factors cannot be
cut this way. A DTensor declares its own layout. A plain tensor was made from one shard and belongs to that very
shard. It goes to a rank with the same shard, or to none. For a square matrix a factor has the matrix's own shape. The
tree records that it is plain, because by its shape it would be a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .....providers.errors import CheckpointError
from ...inventory.inner_tensors import is_outline
from ...sharding.dtensor import cut_of, is_dtensor, layout
from . import gradients

#: How one mesh dimension places a tensor: the number of the tensor's dimension that it cuts, or `COPIES`. The number
#: is in a list if the dimension is cut in pieces, as `fully_shard` does after tensor parallel.
COPIES = -1
Placed = list[int | list[int]]
#: Offsets and sizes of a shard, in JSON's form; None if the whole tensor is here.
Shard = list[list[int]] | None


def shard(parameter: torch.Tensor) -> Shard:
    """Return the place of a parameter's local shard in the global tensor; None if the whole parameter is here."""
    if not is_dtensor(parameter):
        return None
    place = layout(parameter)
    return None if place.offsets is None else [list(place.offsets), list(place.sizes)]


def plain(kept: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the plain tensors among a DTensor parameter's state, which were made from its shard.

    (A step count is excluded: all ranks share it.)
    """
    return [tensor for tensor in kept if tensor.dim() and not is_dtensor(tensor)]


def look_alikes(kept: Iterable[tuple[torch.Tensor, str, torch.Tensor]]) -> list[torch.Tensor]:
    """Return the state tensors of plain square parameters that may be factors rather than moments.

    A key's tensors are moments if a parameter that is not square has a tensor of its own shape under that key. The
    result has the tensors of plain square parameters' shape under all other keys.

    Args:
        kept: for each state tensor, its parameter and its key.
    """
    moments: dict[str, bool] = {}
    candidates = []
    for parameter, key, tensor in kept:
        if tensor.dim() and tensor.shape != parameter.shape:
            moments[key] = False
        elif parameter.dim() in (2, 3) and parameter.shape[-1] == parameter.shape[-2] > 1:
            candidates += [] if is_dtensor(parameter) else [(key, tensor)]
        elif tensor.dim() > 1:
            moments.setdefault(key, True)
    return [tensor for key, tensor in candidates if not moments.get(key)]


def placements(parameter: torch.Tensor, tensor: torch.Tensor) -> Placed | None:
    """Return the layout of a factor that declares one; None if it declares none, or has its parameter's layout."""
    if not is_dtensor(tensor):
        return None
    if tensor.shape == parameter.shape and tensor.placements == getattr(parameter, "placements", None):
        return None
    cuts = [cut_of(placement, tensor.dim()) for placement in tensor.placements]
    return [COPIES if cut is None else [cut.dim] if cut.pieces > 1 else cut.dim for cut in cuts]


def well_formed(shards: Any, placed: Any) -> bool:
    """Return whether `shards` and `placed` of a saved tree have the right form."""
    return (
        isinstance(shards, dict)
        and all(_is_shard(key, value) for key, value in shards.items())
        and isinstance(placed, dict)
        and all(type(key) is str and _is_placed(value) for key, value in placed.items())
    )


def _is_shard(key: Any, value: Any) -> bool:
    return (
        type(key) is str
        and isinstance(value, list)
        and len(value) == 2
        and all(_numbers(v, 0) for v in value)
    )


def _is_placed(value: Any) -> bool:
    return isinstance(value, list) and all(
        _numbers(each, 0) and len(each) == 1 if isinstance(each, list) else _numbers([each], COPIES)
        for each in value
    )


def _numbers(value: Any, least: int) -> bool:
    return isinstance(value, list) and all(type(each) is int and each >= least for each in value)


# --- the saved tree, its form, and a check of that form ---
#
# The tree refers to parameters by name. It has `param_groups` with their options, those options that were others at
# `register` (`registered`), the first change of each (`moved`), the flags of parameters that need a gradient since then, or need none since then (`turned`), which
# parameters of the groups have `gradients` (one character for each), the `state` of each parameter, and under `other` the values
# with keys of the optimizer's own. `on_host` names the tensors that were in host memory.
# `shards` and `placed` record where `factors` are. `plain` names tensors that may be factors although they have their
# parameter's shape.


def by_field(values: Any) -> Iterable[tuple[str, Any]]:
    """Return the state of one parameter, under its keys."""
    return values.items() if isinstance(values, dict) else [("value", values)]


def has_numbers(values: Any) -> bool:
    """Return whether the state of one parameter has values that are no tensors."""
    if values is None or isinstance(values, torch.Tensor) or is_outline(values):
        return False
    if isinstance(values, dict):
        return any(map(has_numbers, values.values()))
    return not isinstance(values, (list, tuple)) or any(map(has_numbers, values))


def steps(tree: dict[str, Any]) -> list[str]:
    """Return the names of the parameters that the saved optimizer stepped."""
    return [name for group in tree["param_groups"] for name in group["params"]]


def graded(tree: dict[str, Any]) -> dict[str, str]:
    """Return what the tree has of each parameter's gradient."""
    names = steps(tree)
    return dict(zip(names, tree.get("gradients", "").ljust(len(names), gradients.NONE), strict=False))


def check_well_formed(name: str, tree: dict[Any, Any]) -> None:
    """Raise `CheckpointError` unless the tree has the form of an optimizer's, so that reading its fields cannot fail."""
    groups, state = tree["param_groups"], tree.get("state")
    on_host, other = tree.get("on_host"), tree.get("other", [])
    registered = tree.get("registered", [])
    wrong = ""
    if not (
        isinstance(groups, list) and all(isinstance(g, dict) and _words(g.get("params")) for g in groups)
    ):
        wrong = "param_groups"
    elif not (isinstance(registered, list) and all(isinstance(each, dict) for each in registered)):
        wrong = "registered"
    elif not all(type(name) is str and type(needs) is bool for name, needs in _items(tree.get("turned", {}))):
        wrong = "turned"
    elif not gradients.well_formed(tree.get("gradients", "")):
        wrong = "gradients"
    elif not all(
        type(path) is str and type(values) is list for path, values in _items(tree.get("moved", {}))
    ):
        wrong = "moved"
    elif not (isinstance(state, dict) and _words(list(state))):
        wrong = "state"
    elif not _words(on_host):
        wrong = "on_host"
    elif not (
        isinstance(other, list) and all(type(p) is tuple and len(p) == 2 and _is_key(p[0]) for p in other)
    ):
        wrong = "other"
    elif not well_formed(tree.get("shards", {}), tree.get("placed", {})):
        wrong = "shards"
    elif not _words(tree.get("plain", [])):
        wrong = "plain"
    if wrong:
        raise CheckpointError(
            f"{name}: the saved optimizer's {wrong!r} is not in the form that spotguard writes"
        )


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else [(value, value)]


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is str for each in value)


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # a list inside: not a key
        return False
    return not isinstance(value, torch.Tensor)
