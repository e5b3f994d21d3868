"""Wrappers around torch's optimizers (Accelerate's, Fabric's, torchtitan's container), saved as the optimizers inside them.

A wrapper has its own `state_dict()`. Without unwrapping, each boundary would copy all of that state, and some
wrappers cannot be hooked. The optimizer inside is torch's, and a save reads it in place. It replaces the wrapper if
three conditions hold:

- The wrapper's `state` and `param_groups` are the very objects of the optimizer inside, and its `state_dict()` has the keys
  of that optimizer's. A container instead has no `state`, and its parameters are those of the optimizers inside.
- The wrapper holds no other tensor, and no gradient scaler that is not registered (`reachable.py`).
- The wrapper or the optimizer inside can be hooked: torch's hooks run in any code that calls the inner `step()`.

One condition is not checked: the wrapper's own `step()` changes nothing before it calls the inner one. A wrapper that
does (SAM) keeps the values it needs for this in its own state, so it fails the conditions above. A change of
parameters before a hook is an edit between two boundaries, and the audit finds such edits before each step
(`audit.py`). A number that a wrapper counts is not a tensor: `attribute_watch.py` names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ....providers.errors import StateError
from ..inventory.reachable import SavedTensors, unsaved
from .values import REFUSALS, error_text

#: The attributes in which wrappers keep the optimizer inside, and containers their optimizers.
_INSIDE, _SEVERAL = ("optimizer", "_optimizer"), "optimizers"
#: Types of what a wrapper keeps itself.
_STATE = (int, float, list, tuple, dict, deque, torch.Tensor)
#: The longest chain of wrappers: DeepSpeed's may be inside Accelerate's.
_DEEP = 4


def is_like_optimizer(value: object) -> bool:
    """Return whether the value steps parameters, even if it is not torch's."""
    return isinstance(value, Optimizer) or (hasattr(value, "param_groups") and hasattr(value, "step"))


def unwrapped(
    values: Mapping[str, Any], saved: Callable[[Collection[Optimizer]], SavedTensors]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the registered values with each wrapper replaced by its optimizers, and the replaced wrappers by name.

    Args:
        values: by registered name.
        saved: returns the tensors that a checkpoint has if these optimizers are saved too.

    Raises:
        StateError: a wrapper holds an object that must be registered too, or a name is used twice.
    """
    replaced: dict[str, Any] = {}
    wrappers: dict[str, Any] = {}
    known = {id(value) for value in values.values()}
    for name, value in values.items():
        inside = _inside(name, value, saved, known) if is_like_optimizer(value) else []
        if inside:
            wrappers[name] = value
        names = [name] if len(inside) < 2 else [f"{name}.{i}" for i in range(len(inside))]
        for key, each in zip(names, inside or [value], strict=True):
            if key in replaced or (key != name and key in values):
                raise StateError(f"{key!r} is the name of a part of {name}; register under another name")
            replaced[key] = each
    return replaced, wrappers


def _inside(
    name: str, value: Any, saved: Callable[[Collection[Optimizer]], SavedTensors], known: Collection[int]
) -> list[Optimizer]:
    """Return the optimizers inside a wrapper that adds no state to them; an empty list for any other value."""
    inside, between = _several(value), []
    if not inside:
        *between, last = _chain(value)
        inside = [last] if between and _is_torchs(last) else []
    if not inside:
        return []
    known = {*known, *map(id, inside), *map(id, between)}
    all_of = saved(inside)
    unsaved_paths = [way for each in between or [value] for way in unsaved(name, each, all_of, known)]
    scalers = [way for way in unsaved_paths if way.endswith("Scaler)")]
    if unsaved_paths and scalers == unsaved_paths:
        raise StateError(
            f"{name} ({type(value).__name__}) scales gradients by {scalers[0]}, whose scale would not be saved; register "
            "that too, as in scaler=…"
        )
    return [] if unsaved_paths else inside


def around(wrapper: Any) -> list[Any]:
    """Return the wrapper and those inside it, without the optimizer that they are around."""
    return _chain(wrapper)[:-1] or [wrapper]


def _chain(value: Any) -> list[Any]:
    """Return the wrapper and the optimizers inside, while each presents the next one's state and groups as its own."""
    chain = [value]
    while len(chain) < _DEEP:
        inner = (getattr(chain[-1], key, None) for key in _INSIDE)
        further = next((each for each in inner if each is not chain[-1] and is_like_optimizer(each)), None)
        if further is None or not _gives(chain[-1], further):
            break
        chain.append(further)
    return chain


def _gives(wrapper: Any, inside: Any) -> bool:
    theirs = getattr(inside, "param_groups", None), getattr(inside, "state", None)
    ours = getattr(wrapper, "param_groups", None), getattr(wrapper, "state", None)
    return None not in theirs and all(map(lambda a, b: a is b, ours, theirs)) and not _adds(wrapper, inside)


def _adds(wrapper: Any, inside: Any) -> bool:
    """Return whether a wrapper's own `state_dict` has more than the optimizer inside.

    If its code reads an attribute that is no object, it adds that, perhaps from the first step on.
    """
    code = getattr(getattr(type(wrapper), "state_dict", None), "__code__", None)
    read = [getattr(wrapper, "__dict__", {}).get(name) for name in code.co_names] if code else []
    if any(isinstance(each, _STATE) for each in read):
        return True
    try:
        return bool(wrapper.state_dict().keys() - inside.state_dict().keys())
    except REFUSALS:
        return False


def _several(value: Any) -> list[Optimizer]:
    """Return the optimizers of a container whose own groups are a view of theirs."""
    inner = getattr(value, _SEVERAL, None)
    if not isinstance(inner, (list, tuple)) or not inner or not all(map(_is_torchs, inner)):
        return []
    theirs = {id(p) for each in inner for group in each.param_groups for p in group["params"]}
    ours = {id(p) for group in getattr(value, "param_groups", ()) for p in group["params"]}
    return [] if getattr(value, "state", None) or ours - theirs else list(inner)


def _is_torchs(value: Any) -> bool:
    """Return whether the value can be hooked and `Optimizer.state_dict` gives its state."""
    return (
        isinstance(value, Optimizer)
        and type(value).state_dict is Optimizer.state_dict
        and can_be_hooked(value)
    )


def can_be_hooked(optimizer: Optimizer) -> bool:
    """Return whether its `step()` calls torch's hooks: `Optimizer.__init__` prepares this."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(type(optimizer).step, "hooked")


def check_says_state(name: str, value: Any, instead: str) -> None:
    """Raise `StateError` for an object whose own `state_dict` fails.

    Some optimizers were written for torch before 2.0, or were never finished. Some datasets want arguments.

    Args:
        name: the registered name.
        value: the object.
        instead: what to do about it, for the message.
    """
    try:
        value.state_dict()
    except REFUSALS as error:
        raise StateError(
            f"{name}: {type(value).__name__}.state_dict() fails ({error_text(error)}), so its state cannot be saved; {instead}"
        ) from error
