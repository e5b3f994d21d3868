"""What a save stands on: one step, and in a job of several ranks what all of them have agreed on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .format.manifest import Level
from .format.sharing import ALL_STAY, Roles

#: "first": no moment is put before the weights and a manifest of theirs are there. "early": the moments go on beside it.
Weights = Literal["with the rest", "first", "early"]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The step alone, for a job of one process."""

    step: int
    #: Which agreement it was; its checkpoints are numbered by it. 0: there was none to be made.
    epoch: int = 0
    #: Who writes what of what several ranks hold.
    roles: Roles = ALL_STAY
    #: The training thread is held at the boundary until it is saved or copied: nothing changes its state meanwhile.
    parked: bool = False
    #: This rank speaks for those that are absent: the first of those that are there.
    speaks: bool = False
    #: Whether the weights are committed by themselves before the moments, and how.
    weights: Weights = "with the rest"
    #: Monotonic seconds after which nothing more comes from ranks whose machine goes.
    doomed_until: float = math.inf
    #: Ranks whose save for this agreement has failed, and why. It grows meanwhile.
    failed: Mapping[int, str] = field(default_factory=dict)
    #: Why some are absent; "" where none is.
    why: str = ""

    @property
    def extent(self) -> tuple[Level, str]:
        """The level of a save of all that the ranks hold that are there, and why it is not full, where it is not."""
        return ("partial-extras", self.why) if self.roles.absent else ("full", "")

    @property
    def numbers(self) -> tuple[int, int]:
        """Of the checkpoints that this save may make, the lower level's first."""
        return 2 * self.epoch, 2 * self.epoch + 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a rank's part of a save would be."""

    #: Bytes that it would write.
    weights: int
    moments: int
    #: Bytes a second to the store; None: not known yet.
    rate: float | None
    #: Seconds of a commit.
    commit: float

    @property
    def seconds(self) -> float | None:
        """To its commit; None: not known yet."""
        return None if self.rate is None else (self.weights + self.moments) / self.rate + self.commit
