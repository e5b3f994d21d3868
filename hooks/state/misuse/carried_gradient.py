"""A gradient that an optimizer carries from one turn to the one in which it steps. No checkpoint has it.

One parameter stands for its optimizer. In the first turns, and once the optimizer has left out a step, each boundary looks at it until
the result is known.

The script may drop the gradient before it steps, as a GAN does whose critic's turns fill the gradients of its generator. A dropped one
is another object when backward adds to it next, or all of it is zero. So a hook looks before each such addition. Values are only
compared with zero, and no device is waited for before the end of the turn with the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle, unserializable_hook

from ..device.cuda_graphs import capturing
from ..sharding.dtensor import local

#: Turns in a row without a step after which nothing is expected of an optimizer.
_LONGEST = 100

CARRIED = (
    "%r steps on gradients of an earlier turn, and a checkpoint has no values of gradients, so a resumed run trains otherwise; call "
    "guard.step() only at the end of a turn in which %r has stepped, behind all batches that it gathers"
)
SUMMED = (
    "%r steps on gradients of an earlier turn too, and a checkpoint has no values of gradients, so a resumed run trains otherwise; "
    "call zero_grad() of %r before the backward pass of each turn, or keep what it sums in a registered tensor"
)


class CarriedGradient:
    """What becomes of the gradient of one parameter."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._param: torch.Tensor | None = None
        self._hooks: list[RemovableHandle] = []
        #: The gradient at the last boundary, and its versions. A weak reference would keep `module.to` from swapping it.
        self._last: torch.Tensor | None = None
        self._versions: tuple[int, int] | None = None
        #: Turns without a step, and whether there were any; whether the last boundary had a gradient that counts if no one drops it.
        self._turns, self.idled, self._pending = 0, False, False
        #: Whether the hooks have seen all of this turn.
        self._seeing = False
        #: Whether each gradient of an earlier turn, where it was looked at, is more than zeros.
        self._counts: list[torch.Tensor] = []
        #: The same of the gradient that backward is about to add to.
        self._before: torch.Tensor | None = None
        #: Of this turn: whether the gradient was dropped, backward has added to it, and a step has used it.
        self._dropped = self._added = self._used = False
        self._choose()

    @property
    def message(self) -> str:
        return CARRIED if self.idled else SUMMED

    def close(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _choose(self) -> None:
        given = (p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None)
        self.close()
        self._seeing = False
        self._param = min(given, key=lambda p: local(p).numel(), default=None)

    def _watch(self) -> None:
        """Have backward tell what it adds to."""
        if not self._hooks and self._param is not None and self._param.requires_grad:
            # The first is called by `autograd.grad` too, which adds nothing.
            self._hooks = [
                self._param.register_hook(self._adding),
                self._param.register_post_accumulate_grad_hook(self._has_added),
            ]

    @unserializable_hook  # type: ignore[untyped-decorator]  # else torch warns where the parameter is pickled
    def _adding(self, _: Any) -> None:
        """Look at the gradient before backward adds to it. In the thread that adds."""
        self._before = None
        if self._param is None or self._used or self._dropped or not self._pending:
            return
        if (grad := self._param.grad) is None or grad is not self._last or capturing():
            self._dropped = True
            return
        try:
            self._before = nonzero(grad)
        except Exception:  # noqa: BLE001 - what looks must not end the backward pass
            self._dropped = True

    def _has_added(self, _: Any) -> None:
        if self._before is not None:
            self._counts.append(self._before)
            self._before, self._added = None, True

    def stepping(self, closure: bool) -> None:
        """Note that the optimizer steps. In the thread that steps."""
        if self._param is None or self._param.grad is None:
            self._dropped = True
            self._choose()
        elif self._pending and not self._used:
            if self._param.grad is not self._last:
                self._dropped = True
            else:
                self._watch()  # now, as a script may freeze its parameters at each boundary
            # Without an addition only a gradient that nothing has changed is known to be the old one. One that each turn fills through
            # `.data` looks the same.
            self._added |= self.idled and version(self._param.grad) == (self._versions or (-1,))[0]
            self._used = not closure

    def turn(self, stepped: bool) -> bool | None:
        """End a turn. On the training thread.

        Returns:
            Whether the optimizer has stepped on a gradient of an earlier turn; None if that is not known yet.
        """
        self._turns = 0 if stepped else self._turns + 1
        self.idled |= not stepped
        result = None if self._turns < _LONGEST else False
        # Backward adds nothing to a parameter that is frozen where its optimizer steps.
        if stepped and self._pending and (self._seeing or self._dropped or self._added or not self._hooks):
            result = self._added and not self._dropped and all(map(bool, self._counts))
        self._dropped = self._added = self._used = False
        if stepped:
            self._pending, self._counts = False, []
        if self.idled:
            self._watch()
        self._seeing = bool(self._hooks)
        if (grad := None if self._param is None else self._param.grad) is None:
            self._pending, self._versions = False, None
            return result if self.idled else False
        versions = version(grad), version(local(grad))
        if stepped or self._last is not grad or versions != self._versions:
            self._pending, self._counts = True, [nonzero(grad)]
        self._last, self._versions = grad, versions
        return result


def version(tensor: torch.Tensor) -> int:
    """Return a tensor's version; 0 for one of inference mode, which counts none."""
    return 0 if tensor.is_inference() else tensor._version


def nonzero(gradient: torch.Tensor) -> torch.Tensor:
    """Return whether not all of it is zero: a tensor on its device. A turn begins, or counts, with other gradients than zeros."""
    return (gradient._values() if gradient.is_sparse else local(gradient)).any()
