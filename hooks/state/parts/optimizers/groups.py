"""The parameter groups of an optimizer against those of a checkpoint.

A script may add groups while it trains. Then the groups that the optimizer has at `register` are the first ones of the
checkpoint, and the restore adds the others.

A checkpoint also has the options that differed when its run registered the optimizer. A schedule changes options at every
step, which is no news at a restart. An option that was another one at `register` shows that the script has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch.optim import Optimizer

from .....providers.errors import StateError
from ....checkpoint.format.values.encoder import short
from ....checkpoint.format.values.placeholders import SavedObject
from ....checkpoint.format.values.sameness import same
from ...inventory import objects
from ...inventory.frozen import Forms, freeze
from ...memory_access import copy_into
from ..values import REFUSALS, error_text

#: Changed options that a warning names.
_NAMED = 3


def options(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a copy of the groups' options, without the parameters."""
    forms = Forms(objects=True)
    return [{key: freeze(each, forms) for key, each in group.items() if key != "params"} for group in groups]


def changed_since(
    first: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, for each group, the options that it had at `register` and that are others now."""
    return [
        {key: value for key, value in before.items() if key in group and same(value, group[key])}
        for before, group in zip(first, now, strict=False)
    ]


def fit(
    name: str,
    here: Sequence[Sequence[str]],
    there: Sequence[Sequence[str]],
    known: Set[str],
    may_lack: Set[str],
) -> list[int]:
    """Return, for each group of the checkpoint that is here, the index of the group here. It adds those behind these.

    Args:
        name: the optimizer's registered name.
        here: the names of the parameters in each group here.
        there: those in each group of the checkpoint.
        known: the names of all parameters that are registered here.
        may_lack: names of parameters that the checkpoint may lack.

    Raises:
        StateError: the groups do not fit.
    """
    new = may_lack - {each for group in there for each in group}
    held = [(i, [each for each in group if each not in new]) for i, group in enumerate(here)]
    held = [(i, group) for i, group in held if group or not here[i]]
    added = [each for group in there[len(held) :] for each in group]
    stepped = {each for _, group in held for each in group}
    if [group for _, group in held] != [*map(list, there[: len(held)])] or stepped & {*added}:
        raise StateError(
            f"{name} has parameter groups of {[len(g) for g in here]} here and {[len(g) for g in there]} in the checkpoint, or "
            "in another order; build it over the same model. If the script adds parameters that the checkpoint lacks, name their "
            "module, as in guard.restore(missing=('model.head',)) [SG602]"
        )
    if unknown := next((each for each in added if each not in known), ""):
        raise StateError(
            f"{name}: the checkpoint has a group with {unknown!r}, which no registered module has; register what was registered "
            "when it was saved [SG602]"
        )
    return [i for i, _ in held]


def put_back(
    name: str,
    optimizer: Optimizer,
    here: Sequence[int],
    groups: Sequence[Mapping[str, Any]],
    params: Mapping[str, torch.Tensor],
) -> None:
    """Give the groups here the options of the checkpoint's, and add those that the script added after `register`.

    Args:
        name: the optimizer's registered name.
        optimizer: the optimizer.
        here: the result of `fit`.
        groups: the groups of the checkpoint.
        params: the parameters by name.

    Raises:
        StateError: the optimizer refuses a group.
    """
    places = [*here]
    first: dict[str, Any] = next(iter(optimizer.param_groups), {})
    for saved in groups[len(here) :]:
        places.append(len(optimizer.param_groups))
        kept = {key: _option(name, key, first.get(key), value) for key, value in saved.items()}
        try:
            optimizer.add_param_group({**kept, "params": [params[each] for each in saved["params"]]})
        except REFUSALS as error:
            raise StateError(
                f"{name}: {type(optimizer).__name__}.add_param_group refuses a group that the run added after register "
                f"({error_text(error)}); add it before register"
            ) from error
    for place, saved in zip(places, groups, strict=True):
        group = optimizer.param_groups[place]
        for key, value in saved.items():
            current = group.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(current, torch.Tensor)
                and current.shape == value.shape
            ):
                copy_into(current, value)  # the user or a compiled step holds this very learning rate
            elif key != "params":
                group[key] = _option(name, key, current, value)


def _option(name: str, key: str, live: Any, saved: Any) -> Any:
    """Return a saved option; a member of the live one's class for a saved member of an enum.

    Raises:
        StateError: the live option is of another class.
    """
    if not isinstance(saved, SavedObject):
        return saved
    if not objects.fits(saved, live):
        raise StateError(
            f"{name}: option {key!r} is a {saved.cls} in the checkpoint and a {type(live).__qualname__} here [SG602]"
        )
    return objects.another(live, saved.kind, saved.value)


def news(
    name: str, here: Sequence[int], first: Sequence[Mapping[str, Any]], tree: Mapping[str, Any]
) -> list[str]:
    """Return one line about groups that the restore adds, and one about options that the script has changed.

    Args:
        name: the optimizer's registered name.
        here: the result of `fit`.
        first: the options of the groups here at `register`.
        tree: the saved tree.
    """
    groups, lines = tree["param_groups"], []
    if added := groups[len(here) :]:
        lines.append(
            f"{name} had {len(groups)} parameter groups when it was saved and has {len(here)} here: the restore adds the others "
            f"({', '.join(each['params'][0] if each['params'] else 'empty' for each in added)} …), so the script must add a "
            f"group only if it is not there, as in: if len({name}.param_groups) < {len(groups)}"
        )
    changed = []
    for place, saved, before in zip(here, groups, tree.get("registered", ()), strict=False):
        were = {**saved, **before}
        changed += [
            (f'{name}.param_groups[{place}]["{key}"] = {_text(value)}', _text(were[key]), _text(saved[key]))
            for key, value in (first[place].items() if place < len(first) else ())
            if key in were and not key.startswith("initial_") and same(value, were[key])
        ]
    if changed:
        more = f"; {len(changed) - _NAMED} more differ" if len(changed) > _NAMED else ""
        told = "; ".join(
            f"{new} (registered with {old}, restored {now})" for new, old, now in changed[:_NAMED]
        )
        lines.append(
            f"the script registers {name} with other options than the run that saved it, and the restore sets the checkpoint's: "
            f"to train with the new ones, set them behind guard.restore(): {told}{more}"
        )
    return lines


def _text(value: Any) -> str:
    if isinstance(value, SavedObject):
        return f"{value.cls.rpartition('.')[2]}.{value.value}" if value.kind == "enum" else value.cls
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return str(value.item())
    return f"({', '.join(map(_text, value))})" if isinstance(value, (tuple, list)) else short(value)
