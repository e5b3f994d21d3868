"""What a save stands on: one step, and in a job of several ranks what all of them have agreed on."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Agreed:
    """The step alone, for a job of one process."""

    step: int
    #: Which agreement it was; its checkpoints are numbered by it. 0: there was none to be made.
    epoch: int = 0
    #: Ranks whose machine goes: they write only what nobody else holds.
    doomed: frozenset[int] = frozenset()
    #: Nobody relies on another: each writes all that it holds.
    whole_each: bool = False
    #: The weights are committed by themselves, before the moments.
    weights_first: bool = False
    #: Monotonic seconds after which nothing more comes from those that are doomed.
    doomed_until: float = math.inf

    @property
    def numbers(self) -> tuple[int, int]:
        """Of the checkpoints that this save may make, the lower level's first."""
        return 2 * self.epoch, 2 * self.epoch + 1
