"""Mistakes that the source of the loop around a run's first boundary shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from .behind_boundary import changed_behind
from .loop_counters import AGAIN, COUNTED, begins_again, loop_counters


def mistakes(frame: FrameType, values: Mapping[str, Any], *, resumed: bool) -> Iterator[tuple[str, ...]]:
    """Yield each mistake as a message and its values.

    Args:
        frame: a frame of `guard.step()`.
        values: the registered values, by name.
        resumed: whether a checkpoint was restored.
    """
    if (change := changed_behind(frame, values)) is not None:
        yield change
    if (counted := loop_counters(frame, values)) is not None:
        yield COUNTED, *counted
    if resumed and (place := begins_again(frame)):
        yield AGAIN, place
