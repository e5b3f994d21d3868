"""What a save has made: a checkpoint that is committed."""

from __future__ import annotations

from dataclasses import dataclass

from .format.manifest import Level


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint. What `guard.save()` returns."""

    #: Completed steps.
    step: int
    url: str
    #: Bytes written, and seconds from the first of them to the commit.
    nbytes: int
    seconds: float
    #: Monotonic seconds of the commit.
    at: float
    #: "weights": the optimizer's moments did not fit into the window.
    level: Level = "full"
    #: Why it is not everything as it stood, with the numbers that decided; "" where it is.
    why: str = ""
    #: Seconds for which training stood still: of a background checkpoint.
    blocked: float = 0.0
