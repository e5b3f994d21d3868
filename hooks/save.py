"""One save on its way: which state of which step, how it is read, and under which names it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .agreed import Agreed
from .checkpoints.effort import Effort
from .checkpoints.stager import Held
from .checkpoints.work import Progress
from .format.manifest import Kind
from .state.collected import Collected
from .state.registered import State


@dataclass(frozen=True, slots=True)
class Save:
    """What one save is made of."""

    state: State
    collected: Collected
    agreed: Agreed
    #: Its numbers within the attempt: an emergency save may need a second one, for its lower level.
    numbers: Iterator[int]
    kind: Kind
    effort: Effort
    progress: Progress | None
    #: Read from where training has it, and no copy.
    in_place: bool
    #: Its bytes on this machine's disk, and not in `collected`.
    held: Held | None = None
    #: Of what other ranks hold too, where there is time to take them.
    digests: Mapping[str, int] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.agreed.step

    def moved(self) -> str:
        """Asked after each object: a swap there and back would be seen by none of the looks at the end."""
        return self.state.broken() if self.in_place else ""
