"""What a save has made: a checkpoint that is committed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from .format.manifest import Level

log = logging.getLogger("spotguard")


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
    #: "weights": the optimizer's moments did not fit into the window, or an optimizer that is not registered has them.
    #: "partial-extras": ranks were gone, and what each had of its own with them.
    level: Level = "full"
    #: Why it is not everything as it stood, with the numbers that decided; "" where it is.
    why: str = ""
    #: Seconds for which training stood still: of a background checkpoint.
    blocked: float = 0.0

    def lacking(self, why: str) -> Saved:
        """The same of the lower level, where what was saved lacks moments; reported at each save.

        Args:
            why: "" where it lacks none.
        """
        if not why:
            return self
        log.error("step %d is saved without its moments: %s", self.step, why)
        return replace(self, level="weights", why=f"{why}; {self.why}" if self.why else why)
