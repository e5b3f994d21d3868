"""Gradients that an optimizer of a manual optimization gathers over several batches, without a step at each.

No checkpoint has gradients, so a boundary must not come between a backward pass and the step that uses what it made. A script may
also drop them before that step, as a GAN does whose generator fills the gradients of its critic. Nothing tells beforehand which
one a script does. So gradients count until a step of their optimizer has shown that it drops them.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

from spotguard.hooks.state.sharding.dtensor import local

log = logging.getLogger("spotguard")

#: Batches without a boundary after which one is marked all the same: a notice must find one in its window.
_LONGEST = 100


class GatheredGradients:
    """The gradients of all optimizers of a module.

    Args:
        trainer: the Trainer. With automatic optimization there is one optimizer, whose steps end each accumulation.
    """

    def __init__(self, trainer: Any) -> None:
        pairs = zip(trainer.optimizers, trainer.strategy._lightning_optimizers, strict=True)
        manual = not trainer.lightning_module.automatic_optimization
        self._each = [_Gradients(*pair) for pair in pairs if manual]
        #: Batches at whose end gradients counted, in a row.
        self._batches = 0

    def state(self) -> dict[str, Any]:
        """Return what the steps have shown: a resumed run marks the same boundaries."""
        return {"count": [each.count for each in self._each], "batches": self._batches}

    def resume(self, state: Mapping[str, Any]) -> None:
        self._batches = state["batches"]
        for each, count in zip(self._each, state["count"], strict=True):
            each.count = count
            each.note()

    def look(self) -> None:
        """Follow what came behind a batch: Lightning drops all gradients before a validation, which tells nothing of the script."""
        for each in self._each:
            each.look()

    def count_here(self) -> bool:
        """Return whether a boundary at the end of this batch would lose gradients that count. Call it after each batch."""
        counting = [number for number, each in enumerate(self._each) if each.look() and each.count]
        self._batches = self._batches + 1 if counting else 0
        if self._batches == _LONGEST:
            log.warning(
                "optimizer %d of configure_optimizers has gradients that no step has used, and the last %d batches all ended with "
                "such ones: from now on each batch ends with a boundary, and a resumed run begins there without them [SG427]",
                counting[0],
                _LONGEST,
            )
        return 0 < self._batches < _LONGEST


class _Gradients:
    """The gradients of one optimizer.

    Args:
        optimizer: the optimizer.
        wrapper: Lightning's wrapper of it, which the script steps.
    """

    def __init__(self, optimizer: Any, wrapper: Any) -> None:
        self._optimizer = optimizer
        #: Whether gradients from before a step's batch count for that step.
        self.count = True
        #: By parameter, the gradient that a step has used, or that was zeroed, and its version.
        self._used: dict[int, tuple[Any, int]] = {}
        #: A parameter with a gradient that was not used when a batch had ended, and that gradient.
        self._open: tuple[Any, Any] | None = None
        self._zeroed = False
        #: The hook that looks at it before the next backward pass adds to it.
        self._hook: Any = None
        optimizer.register_step_post_hook(self._stepped)
        for each in (optimizer, wrapper):
            each.zero_grad = self._zeroing(each.zero_grad)

    def note(self) -> None:
        """Note that the gradients which are there now are used up."""
        self._used = {
            id(each): (weakref.ref(each.grad), local(each.grad)._version)
            for each in self._parameters()
            if each.grad is not None
        }

    def look(self) -> bool:
        """Return whether there is a gradient that no step has used, and remember it until the next step."""
        self._zeroed = False
        self._close()
        for each in self._parameters():
            if each.grad is not None:
                known, version = self._used.get(id(each), (lambda: None, 0))
                now = local(each.grad)._version
                if (known() is not each.grad or version != now) and not _is_zero(each.grad):
                    self._open = each, weakref.ref(each.grad)
                    if each.requires_grad:
                        self._hook = each.register_hook(partial(self._adding, now))
                    return True
                self._used[id(each)] = weakref.ref(each.grad), now
        return False

    def _adding(self, version: int, _: Any) -> None:
        """Note whether the script has zeroed the open gradient in place, as `Module.zero_grad(set_to_none=False)` does."""
        if self._open is not None and (gradient := self._open[0].grad) is not None:
            self._zeroed |= version != local(gradient)._version and _is_zero(gradient)

    def _close(self) -> None:
        self._open = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _parameters(self) -> list[Any]:
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def _stepped(self, *_: Any) -> None:
        if self._open is not None:
            parameter, gradient = self._open
            kept = parameter.grad is not None and parameter.grad is gradient()
            self.count = kept and not self._zeroed
            self._close()
        self.note()

    def _zeroing(self, zero_grad: Any) -> Any:
        def zero(*given: Any, **more: Any) -> None:
            zero_grad(*given, **more)
            self._zeroed = True
            self.note()

        return zero


def _is_zero(gradient: Any) -> bool:
    """Whether all of it is zero. A shard does not tell, because all ranks must find the same."""
    if local(gradient) is not gradient:
        return False
    return not (gradient._values() if gradient.is_sparse else gradient).any()
