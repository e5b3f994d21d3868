"""Whether each parameter of an optimizer has a gradient: a step passes over a parameter without one.

After `zero_grad(set_to_none=False)` a parameter that no batch used has a gradient of zeros. Momentum and weight decay move it.
So a checkpoint has one character for each parameter, and a restore gives zeros. The values of gradients are neither saved nor read.

Only the training thread may ask, at a boundary: `.grad` crashes the process if it is read while another thread runs backward. It
asks for all when a parameter gets its state, each second, and where a few that each boundary asks for have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .....providers.errors import CheckpointError
from ..stateful import ClassedPart

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
