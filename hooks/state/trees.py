"""The tree of an optimizer as it is saved: what stands in it, and whether somebody wrote it so.

By the parameters' names: `param_groups` with their numbers, the `state` of each parameter, and under `other` what was kept
under keys of the optimizer's own. `on_host` names the tensors that were in the host's memory; `shards` and `placed` say where
`factors` lie, and `plain` which tensors may be some though they have their parameter's shape.
"""

from __future__ import annotations

from typing import Any

import torch

from ...providers.errors import CheckpointError
from . import factors


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
    elif not factors.well_formed(tree.get("shards", {}), tree.get("placed", {})):
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
