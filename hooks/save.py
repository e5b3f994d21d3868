"""One save on its way: which state of which step, how it is read, and under which names it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .agreed import Agreed
from .checkpoints.draft import Written
from .checkpoints.effort import Effort
from .checkpoints.stager import Held
from .checkpoints.work import Progress
from .checkpoints.writer import Spoiled
from .format.leaf import Leaf
from .format.manifest import Kind
from .state.audit import Reference
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
    def identity(self) -> tuple[int, int]:
        """The step, and which copies of its state: those of a `restore` to the same step are others."""
        return self.agreed.step, self.state.taken

    def reference(self) -> Reference | None:
        """The checksums of this boundary; None: training is parked there, and nothing is edited.

        Raises:
            Abandoned: called off.
            Spoiled: none were taken.
        """
        if self.agreed.parked:
            return None
        audit = self.state.audit
        self.effort.wait(lambda: audit.wanted < 0, audit.ready)
        if (reference := audit.reference) is None:
            raise Spoiled("no checksums were taken at its boundary")
        return reference

    def check(self, reference: Reference | None, leaves: Sequence[Leaf]) -> str:
        """What is other than at the boundary, in live memory or in a copy of it."""
        return "" if reference is None else reference.differs(leaves, self.effort.pause)

    def check_written(self, reference: Reference | None, written: Written) -> None:
        """As `check`, of what was written from live memory.

        Raises:
            Spoiled: it is other than at the boundary.
        """
        if reference is not None and (
            why := reference.differs_from_written(written.tensors, self.collected.leaves, self.effort.pause)
        ):
            raise Spoiled(why)

    @property
    def step(self) -> int:
        return self.agreed.step

    def moved(self) -> str:
        """Asked after each object: a swap there and back would be seen by none of the looks at the end."""
        return self.state.broken() if self.in_place else ""
