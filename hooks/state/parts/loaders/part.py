"""A wrapped loader as a part of the registered state, and the refusal of others.

A loader's own state leaves out the seed that its iterator draws, the order that a sampler has drawn, or what its workers drew. So a
loader is registered as a `ResumableLoader`, which knows of each kind what to add.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from .....providers.errors import StateError
from ...inventory.frozen import freeze_of, prove
from ..values import StatefulPart, has_state
from .passes import first_draws
from .resumable import ResumableLoader

log = logging.getLogger("spotguard")


class LoaderPart(StatefulPart):
    """A `ResumableLoader`."""

    value: ResumableLoader

    def __init__(self, name: str, value: ResumableLoader) -> None:
        super().__init__(name, value)
        value.use.name = name
        self._proven = False
        for path, kind in value.unsavable_generators.items():
            log.warning(
                "%s.%s is a %s, whose state cannot be saved, so a resumed run draws other numbers: use random.Random(seed)",
                name,
                path,
                kind,
            )

    def at_boundary(self) -> None:
        first_draws.end()
        # Only the loader's own state can change later: all else is made anew by each call, or never changed once it is made.
        state = self.value.state_dict()
        state["loader"] = freeze_of(self.name, state["loader"], self.forms)
        self._frozen = state
        if not self._proven and state["loader"] is not None:
            prove(self.name, state)  # `register` had no state to prove yet
            self._proven = True


def is_position(value: object) -> bool:
    """Return whether the value's state is a position among the samples that one of N ranks reads."""
    return isinstance(value, (ResumableLoader, Sampler))


def refuse_bare(name: str, value: Any, registered: Iterable[Any]) -> None:
    """Refuse what is iterated and not wrapped.

    Args:
        name: its registered name.
        value: the value.
        registered: all registered values. A dataset or a sampler of a registered `ResumableLoader` may have a state beside it.

    Raises:
        StateError: the value is a loader, or another iterable with a state.
    """
    loaders = [each for each in registered if isinstance(each, ResumableLoader)]
    if not _is_iterated(value) or any(each.reads(value) for each in loaders):
        return
    what = f"{name} is a {type(value).__name__}"
    if isinstance(value, Sampler):
        raise StateError(
            f"{what}, whose own state does not hold what it has drawn: register the loader that reads it, as in "
            "loader = spotguard.ResumableLoader(loader) [SG402]"
        )
    if isinstance(value, DataLoader) and not hasattr(value, "state_dict"):
        raise StateError(
            f"{what}, and a DataLoader does not know its position: wrap it, as in {name} = spotguard.ResumableLoader({name}) [SG402]"
        )
    raise StateError(
        f"{what}, which is iterated, and its own state does not hold what an iterator draws: wrap it before the loop and "
        f"register the wrapper, as in {name} = spotguard.ResumableLoader({name}) [SG402]"
    )


def _is_iterated(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (ResumableLoader, nn.Module, torch.Tensor, dict, Optimizer)) or hasattr(
        kind, "step"
    ):
        return False
    if isinstance(value, DataLoader):
        return True
    if not has_state(value) or getattr(kind, "__iter__", Sampler.__iter__) is Sampler.__iter__:
        return False
    # What can be indexed is a collection, which iterating does not change. torch's datasets inherit a method that only refuses.
    return not hasattr(kind, "__getitem__") or kind.__getitem__ is Dataset.__getitem__
