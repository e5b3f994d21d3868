"""What one save, restore or transfer took, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Took:
    """Bytes of the state alone; time and means are those of the process that saved or loaded it."""

    nbytes: int
    seconds: float
    #: Processor seconds, of all its threads, user and system.
    cpu: float
    #: The most host memory beyond the state, in MiB.
    extra: float = 0.0
    #: Seconds from the notice to the first put; only ours is told of one.
    first: float | None = None
