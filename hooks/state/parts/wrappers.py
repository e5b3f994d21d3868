"""Wrappers around torch's optimizers (Accelerate's, Fabric's, torchtitan's container): saved as what they lead to.

A wrapper has a `state_dict()` of its own, so it would be copied as a whole at each boundary, and some cannot be hooked. What
it leads to is an optimizer of torch, read where it lies. It is taken in the wrapper's place where three things are seen:

- its `state` and `param_groups` are the very objects of the optimizer inside, or, of a container, it has no `state` and its
  parameters are theirs;
- it holds no tensor beside theirs, and no gradient scaler that nobody registered (`reachable.py`);
- it can be hooked, or the optimizer inside can: torch's hooks fire in whatever calls that one's `step()`.

One thing is believed: that the wrapper's own `step()` changes nothing before it comes to the one inside. A wrapper that does
(SAM) keeps what it needs for it in a state of its own, and so is none of these; and what changes parameters in front of a hook
is an edit between two boundaries, which the audit finds in front of each step (`audit.py`). A number that a wrapper counts is no tensor:
`reachable.counts` tells of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch.optim import Optimizer

from ....providers.errors import StateError
from .reachable import SavedTensors, unsaved
from .values import REFUSALS, said

#: Where wrappers keep the optimizer that they lead to, and containers theirs.
_INSIDE, _SEVERAL = ("optimizer", "_optimizer"), "optimizers"
#: Wrappers around wrappers: DeepSpeed's inside Accelerate's.
_DEEP = 4


def is_like_optimizer(value: object) -> bool:
    """Whether it steps parameters, torch's or not."""
    return isinstance(value, Optimizer) or (hasattr(value, "param_groups") and hasattr(value, "step"))


def unwrapped(
    values: Mapping[str, Any], saved: Callable[[Collection[Optimizer]], SavedTensors]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was registered with wrappers replaced by what they lead to, and those wrappers by name.

    Args:
        values: by registered name.
        saved: the tensors that a checkpoint has if these optimizers are saved too.

    Raises:
        StateError: a wrapper holds something that has to be registered too.
    """
    found: dict[str, Any] = {}
    wrappers: dict[str, Any] = {}
    known = {id(value) for value in values.values()}
    for name, value in values.items():
        inside = _inside(name, value, saved, known) if is_like_optimizer(value) else []
        if inside:
            wrappers[name] = value
        names = [name] if len(inside) < 2 else [f"{name}.{i}" for i in range(len(inside))]
        for key, each in zip(names, inside or [value], strict=True):
            if key in found or (key != name and key in values):
                raise StateError(f"{key!r} is the name of a part of {name}; register under another name")
            found[key] = each
    return found, wrappers


def _inside(
    name: str, value: Any, saved: Callable[[Collection[Optimizer]], SavedTensors], known: Collection[int]
) -> list[Optimizer]:
    """The optimizers that a wrapper leads to and adds nothing to; none where it is no such wrapper."""
    inside, between = _several(value), []
    if not inside:
        *between, last = _chain(value)
        inside = [last] if between and _is_torchs(last) else []
    if not inside:
        return []
    known = {*known, *map(id, inside), *map(id, between)}
    all_of = saved(inside)
    lost = [way for each in between or [value] for way in unsaved(name, each, all_of, known)]
    scalers = [way for way in lost if way.endswith("Scaler)")]
    if lost and scalers == lost:
        raise StateError(
            f"{name} ({type(value).__name__}) scales gradients by {scalers[0]}, whose scale would not be saved; register "
            "that too, as in scaler=…"
        )
    return [] if lost else inside


def _chain(value: Any) -> list[Any]:
    """The wrapper and what it leads to, as far as each gives the state and the groups of the next as its own."""
    found = [value]
    while len(found) < _DEEP:
        held = (getattr(found[-1], key, None) for key in _INSIDE)
        further = next((each for each in held if each is not found[-1] and is_like_optimizer(each)), None)
        if further is None or not _gives(found[-1], further):
            break
        found.append(further)
    return found


def _gives(wrapper: Any, inside: Any) -> bool:
    theirs = getattr(inside, "param_groups", None), getattr(inside, "state", None)
    ours = getattr(wrapper, "param_groups", None), getattr(wrapper, "state", None)
    return None not in theirs and all(map(lambda a, b: a is b, ours, theirs))


def _several(value: Any) -> list[Optimizer]:
    """The optimizers of a container whose own groups are a view of theirs."""
    held = getattr(value, _SEVERAL, None)
    if not isinstance(held, (list, tuple)) or not held or not all(map(_is_torchs, held)):
        return []
    theirs = {id(p) for each in held for group in each.param_groups for p in group["params"]}
    ours = {id(p) for group in getattr(value, "param_groups", ()) for p in group["params"]}
    return [] if getattr(value, "state", None) or ours - theirs else list(held)


def _is_torchs(value: Any) -> bool:
    """Whether it can be hooked, and torch's own words say what its state is."""
    return (
        isinstance(value, Optimizer)
        and type(value).state_dict is Optimizer.state_dict
        and can_be_hooked(value)
    )


def can_be_hooked(optimizer: Optimizer) -> bool:
    """Whether its `step()` calls torch's hooks: `Optimizer.__init__` has made it so."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(type(optimizer).step, "hooked")


def check_says_state(name: str, optimizer: Optimizer) -> None:
    """Raise `StateError` for one whose own `state_dict` fails: some were written for torch before 2.0, or never finished."""
    try:
        optimizer.state_dict()
    except REFUSALS as error:
        raise StateError(
            f"{name}: {type(optimizer).__name__}.state_dict() fails ({said(error)}), so its state cannot be saved; register the "
            "optimizers that it is made of, or give it a state_dict() that works"
        ) from error
