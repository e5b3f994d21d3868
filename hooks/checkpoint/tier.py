"""Tiers of a checkpoint's tensors, by their worth when time is short."""

from __future__ import annotations

import enum


class Tier(enum.IntEnum):
    """The value of a tensor when time is short. A save uploads objects in this order, and no object holds two tiers."""

    #: Parameters, buffers and extras. If time is short, a job can resume with these alone.
    WEIGHTS = 0
    #: Parameters without a gradient. Their value is the same, and the store most likely has them since the first checkpoint.
    FROZEN = 1
    #: State of optimizers.
    MOMENTS = 2
