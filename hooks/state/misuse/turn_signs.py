"""The turn behind the last boundary: whether it has begun, and which registered values have moved in it.

A save by hand, a second loop over `steps` and a second `restore` ask. Between the boundary and the first sign of a turn,
whatever the script does belongs to the boundary: an evaluation, a note of the best result. These are the signs:

- A registered loader has delivered, and its pass is not over. (An evaluation reads a whole pass.)
- A gradient has changed. The smallest parameters of each optimizer stand for all, because a boundary may take microseconds.
- A buffer of a trained module has moved, as BatchNorm's statistics do in forward.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from ...checkpoint.format.values.encoder import short
from ...checkpoint.format.values.sameness import difference, same
from ..inventory.frozen import Forms
from ..parts.loaders.part import LoaderPart
from ..parts.module import ModulePart
from ..parts.optimizers.optimizer import OptimizerPart
from ..parts.rng import RngPart
from ..parts.values import Part, StatefulPart, TensorPart
from ..sharding.dtensor import local
from .carried_gradient import nonzero, version

#: The most optimizers whose gradients are followed, by two parameters each: 0.15 µs for each parameter at a boundary.
_OPTIMIZERS = 8
#: The most bytes of a gradient that is followed: it is kept until the next boundary.
_KEPT = 2**20


class TurnSigns:
    """The signs of a turn, as they were at the last boundary.

    Args:
        parts: the parts of the registered values.
        trained: returns the parameters of each registered optimizer; without one, of each module.
        names: returns the names of the parameters by id.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        trained: Callable[[], Iterable[Sequence[torch.Tensor]]],
        names: Callable[[], Mapping[int, str]],
    ) -> None:
        self._parts, self._trained, self._names = parts, trained, names
        self._loaders = {part.name: part.value for part in parts if isinstance(part, LoaderPart)}
        self._followed: list[torch.Tensor] = []
        #: The id of each one's gradient, its version, and the gradient itself, so that no other one gets its id.
        self._gradients: list[tuple[int, int, torch.Tensor] | None] = []
        self._weights: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._delivered: dict[str, tuple[int, int]] = {}

    def mark(self, *, look: bool) -> None:
        """Take the signs at a boundary. On the training thread, after every step: microseconds count.

        Args:
            look: choose the parameters to follow. The first step shows which ones have gradients.
        """
        if look:
            self._followed = [p for params in islice(self._trained(), _OPTIMIZERS) for p in _smallest(params)]
            self._weights = []
        self._gradients = self._look_at_gradients()
        if self._loaders:
            self._delivered = {name: each.progress for name, each in self._loaders.items()}

    def _look_at_gradients(self) -> list[tuple[int, int, torch.Tensor] | None]:
        return [None if (g := p.grad) is None else (id(g), version(g), g) for p in self._followed]

    def keep_weights(self) -> None:
        """Keep the weights that are followed, before the first step of an optimizer changes them."""
        self._weights = [(p, local(p.detach()).clone()) for p in self._followed]

    def has_other_weights(self) -> bool:
        """Return whether the weights that are followed are others than those that were kept."""
        return any(same(before, local(p.detach())) for p, before in self._weights)

    def begun(self, *, buffers: bool) -> str:
        """Return the first sign that the turn has begun, with its path; "" if there is none.

        Args:
            buffers: the boundary has copied the buffers, and weights have not changed since.
        """
        for name, loader in self._loaders.items():
            if (progress := loader.progress) != self._delivered[name] and progress[1]:
                return f"{name} has delivered a batch"
        for p, before, now in zip(self._followed, self._gradients, self._look_at_gradients(), strict=True):
            if now is None or now == before:
                continue
            if bool(nonzero(now[2])):
                return f"the gradient of {self._names().get(id(p), 'a parameter')} has changed"
        trained = (part for part in self._parts if buffers and isinstance(part, ModulePart) and part.trained)
        return next((f"{name} has moved" for part in trained for name in part.moved_buffers()), "")

    def moved(self, *, ask: bool) -> dict[str, str]:
        """Return the registered values that are not those of the boundary, by name: the first path of each that differs.

        Args:
            ask: whether a `state_dict()` of the script may run here, as at a boundary.
        """
        found = {}
        for part in self._parts:
            if isinstance(part, StatefulPart) and part.name not in self._loaders and not ask:
                continue
            try:
                path = next(self._moved(part), "")
            except Exception:  # noqa: BLE001 - in another thread, training may change the value meanwhile
                path = part.name
            if path:
                found[part.name] = path
        return found

    def _moved(self, part: Part) -> Iterator[str]:
        if part.name in self._loaders:
            before = self._delivered[part.name]
            if (now := self._loaders[part.name].progress) != before:
                yield f"{part.name} (batch {before[1]}, now {now[1]})"
        elif isinstance(part, ModulePart):
            yield from part.moved_buffers()
        elif isinstance(part, OptimizerPart):
            for at, groups in enumerate(part.groups()):
                yield from _differences(*groups, f"{part.name}.param_groups[{at}]")
        elif isinstance(part, TensorPart):
            yield from _differences(part.tree(), part.live, part.name)
        elif not isinstance(part, RngPart):  # nobody registers generators
            asked = copy.copy(part)
            asked.forms = Forms(objects=part.forms.objects)
            asked.at_boundary()
            yield from _differences(part.tree(), asked.tree(), part.name)


def _smallest(trained: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the smallest parameter of each half, of those that have gradients."""
    params = [p for p in trained if p.requires_grad]
    params = [p for p in params if p.grad is not None] or params
    halves = params[: len(params) // 2], params[len(params) // 2 :]
    smallest = [min(half, key=lambda p: local(p).nbytes) for half in halves if half]
    return [p for p in smallest if local(p).nbytes <= _KEPT]


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yield the first path at which two values differ, with both values if they are short."""
    if (found := difference(before, now, path)) is not None:
        shown = [*map(short, found[1:])]
        yield found[0] if shown[0].startswith("<") else f"{found[0]} ({shown[0]}, now {shown[1]})"
