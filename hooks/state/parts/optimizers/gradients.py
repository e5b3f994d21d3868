"""Which parameters of an optimizer need a gradient, and which have one: a step passes over a parameter without one.

After `zero_grad(set_to_none=False)` a parameter that no batch used has a gradient of zeros. Momentum and weight decay move it.
So a checkpoint has one character for each parameter, and a restore gives zeros. The values of gradients are neither saved nor read.

Only the training thread may ask, at a boundary: `.grad` crashes the process if it is read while another thread runs backward.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .....providers.errors import CheckpointError
from ..stateful import ClassedPart

log = logging.getLogger("spotguard")

_needs, _gradient = operator.attrgetter("requires_grad"), operator.attrgetter("grad")
#: The character of a parameter without a gradient.
NONE = "0"
#: How a restore makes a gradient, by its character.
_MAKE: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    NONE: lambda param: None,
    "1": torch.zeros_like,
    "s": lambda param: torch.zeros_like(param, layout=torch.sparse_coo),
}


def presence(params: Iterable[torch.Tensor]) -> str:
    """Return one character for each parameter. On the training thread, or with it parked."""
    return "".join(
        [NONE if (grad := param.grad) is None else "s" if grad.is_sparse else "1" for param in params]
    )


def well_formed(saved: object) -> bool:
    return isinstance(saved, str) and not saved.strip("".join(_MAKE))


def put_back(params: Sequence[torch.Tensor], saved: str) -> None:
    """Give each parameter zeros for the gradient that it had, and no gradient if it had none."""
    for param, character in zip(params, saved.ljust(len(params), NONE), strict=False):
        if character == "1" and param.grad is not None and not param.grad.is_sparse:
            param.grad.detach().zero_()  # a captured graph may write into this very memory
        else:
            param.grad = _MAKE[character](param)


def turn(name: str, params: Mapping[str, torch.Tensor], turned: Mapping[str, bool]) -> None:
    """Freeze and train parameters of the optimizer `name` as the run had done."""
    other = [
        each for each, needs in turned.items() if each in params and params[each].requires_grad is not needs
    ]
    for each in other:
        params[each].requires_grad_(turned[each])
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        log.info("%s: %s%s is frozen or trained again, as the run had it", name, other[0], more)


class TrainedParameters:
    """The parameters of an optimizer as of the last boundary. Each boundary reads all flags and gradients, at 0.1 µs a parameter.

    A few cannot stand for all: a script may drop all gradients in one turn, leave one layer out of it, and zero them in place in the
    next.

    Attributes:
        needs: whether each parameter needs a gradient.
        graded: the character of each.
    """

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        self._params = params
        self.needs = self._first = [*map(_needs, params)]
        #: The type of each one's gradient, which tells at the speed of C whether it has one.
        self._types: list[type] = []
        self.graded = ""
        self.at_boundary()

    @property
    def turned(self) -> bool:
        """Whether a parameter needs a gradient and did not at first, or the other way round."""
        return self.needs != self._first

    def at_boundary(self) -> None:
        self.needs = [*map(_needs, self._params)]
        if (types := [*map(type, map(_gradient, self._params))]) != self._types:
            self._types = types
            self.look()

    def look(self) -> None:
        """Ask all for their gradients' layouts, too."""
        self.graded = presence(self._params)


class OwnStatePart(ClassedPart):
    """An optimizer with its own `state_dict`, and which of its parameters have a gradient."""

    def at_boundary(self) -> None:
        super().at_boundary()
        self._graded = presence(self._params()).rstrip(NONE)

    def tree(self) -> Any:
        return {**super().tree(), "gradients": self._graded}

    def targets(self, tree: Any) -> None:
        super().targets(tree)
        if not well_formed(tree.get("gradients", "")):
            raise CheckpointError(
                f"{self.name}: the saved 'gradients' are not in the form that spotguard writes"
            )

    def put_back(self, tree: Any) -> None:
        super().put_back(tree)
        put_back(self._params(), tree.get("gradients", ""))

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.value.param_groups for param in group["params"]]
