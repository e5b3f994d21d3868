"""The order of a tensor's dimensions in memory. By it kernels choose their way, and another way may change the last bits.

A checkpoint has it for each tensor whose order is not that of its dimensions, and an outline has it as its strides. Memory with gaps or
overlaps has no such order: its outline has strides of 0, and a restore makes it dense.
"""

from __future__ import annotations

from typing import Any

import torch

from ...checkpoint.format.boxes import order_of
from ..memory_access import expanded
from ..sharding.dtensor import is_dtensor


def memory_like(outline: torch.Tensor, device: Any = "cpu") -> torch.Tensor:
    """Return memory in the layout of an outline."""
    if expanded(outline):
        return torch.empty(outline.shape, dtype=outline.dtype, device=device)
    return torch.empty_strided(outline.shape, outline.stride(), dtype=outline.dtype, device=device)


def unlike_layout(name: str, live: torch.Tensor, saved: torch.Tensor) -> list[str]:
    """Return a line about a live tensor that a restore fills, if it is laid out in another way than the saved one was."""
    if is_dtensor(live) or live.shape != saved.shape:
        return []
    here, there = (order_of(each.shape, each.stride()) for each in (live, saved))
    if here is None or here == there:
        return []
    return [
        f"{name} has its dimensions in the order {here} in memory and had them in the order {there or 'of a view'} when it was saved: "
        "training may differ in the last bits; give it the same memory format before guard.restore() [SG606]"
    ]
