"""The moment at which a registered optimizer changes something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def hook(optimizer: Optimizer, before_change: Callable[[], None]) -> RemovableHandle:
    """Have `before_change` called before this optimizer changes anything, until the handle is removed.

    A closure (LBFGS, Lightning) runs forward and backward inside `step()`: there the state changes only after
    the closure has run once, so the gate is passed at that moment and not before.
    """

    def pre_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            before_change()
            return None

        def gated() -> Any:
            loss = closure()
            before_change()  # nothing the second time: the state is dirty until the boundary
            return loss

        if len(args) > 1:
            return (args[0], gated, *args[2:]), kwargs
        return args, {**kwargs, "closure": gated}

    return optimizer.register_step_pre_hook(pre_hook)
