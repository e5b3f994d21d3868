"""Hooks before and after each change that a registered optimizer makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def hook(
    optimizer: Optimizer,
    before_change: Callable[[FrameType], object],
    after_change: Callable[[FrameType], object],
) -> list[RemovableHandle]:
    """Call `before_change` before this optimizer changes anything, and `after_change` when its step is over.

    Both get the frame that runs the step. A step that raises ends without `after_change`. A closure (LBFGS,
    Lightning) runs forward and backward inside `step()`. There the state changes only after the closure has run once,
    so the step passes the gate at that moment and not earlier.

    Returns:
        The handles of the hooks, for their removal.
    """

    def pre_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = sys._getframe(1)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            before_change(frame)
            return None

        def gated() -> Any:
            loss = closure()
            before_change(frame)  # has no effect the second time: the state is dirty until the boundary
            return loss

        if len(args) > 1:
            return (args[0], gated, *args[2:]), kwargs
        return args, {**kwargs, "closure": gated}

    def post_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        after_change(sys._getframe(1))

    return [optimizer.register_step_pre_hook(pre_hook), optimizer.register_step_post_hook(post_hook)]
