"""One save on its way: which state of which step, how it is read, and under which names it is written."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...providers.errors import SpotguardError
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.manifest import Kind, Level
from ..ipc.notice import PreemptionNotice
from ..state.changes.audit import Reference
from ..state.collected import CollectedState
from ..state.state import State
from ..state.tensor_item import StateTensor
from .cancel_scope import CancelScope
from .local_copy import StagedSave
from .plan.partitioner import ALL_STAY, RankRoles
from .plan.write_plan import WrittenState
from .upload.transfer import Progress
from .upload.uploader import StateChanged


@dataclass(frozen=True, slots=True)
class SaveContext:
    """What one save is made of."""

    state: State
    collected: CollectedState
    agreed: SaveSpec
    #: Its numbers within the attempt: an emergency save may need a second one, for its lower level.
    numbers: Iterator[int]
    kind: Kind
    scope: CancelScope
    progress: Progress | None
    #: Read from where training has it, and no copy.
    in_place: bool
    #: Its bytes on this machine's disk, and not in `collected`.
    held: StagedSave | None = None
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
        self.scope.wait(lambda: audit.wanted < 0, audit.ready)
        if (reference := audit.reference) is None:
            raise StateChanged("no checksums were taken at its boundary")
        return reference

    def check(self, reference: Reference | None, leaves: Sequence[StateTensor]) -> str:
        """What is other than at the boundary, in live memory or in a copy of it."""
        return "" if reference is None else reference.differs(leaves, self.scope.pause)

    def check_written(self, reference: Reference | None, written: WrittenState) -> None:
        """As `check`, of what was written from live memory.

        Raises:
            Spoiled: it is other than at the boundary.
        """
        if reference is not None and (
            why := reference.differs_from_written(written.tensors, self.collected.leaves, self.scope.pause)
        ):
            raise StateChanged(why)

    @property
    def step(self) -> int:
        return self.agreed.step

    def moved(self) -> str:
        """Asked after each object: a swap there and back would be seen by none of the looks at the end."""
        return self.state.broken() if self.in_place else ""


# What the saving thread is asked for, and what became of it.


@dataclass(slots=True)
class SaveRequest:
    """One save, or what else has to wait its turn behind one."""

    kind: Kind
    scope: CancelScope
    alarm: PreemptionNotice | None = None
    #: Which call of the ranks asked for it; 0 in a job of one process.
    epoch: int = 0
    #: Ranks whose machine goes, as of that call.
    departing: frozenset[int] = frozenset()
    #: Only a parked boundary will do: some rank's state moved while it was read.
    at_boundary: bool = False
    #: The gate was shut when it was asked for, and stays shut for it until its turn comes.
    holds: bool = False
    #: A later call has taken its place: what becomes of it is nobody's answer.
    superseded: bool = False
    #: Nothing is saved: only the plan is made.
    rehearsal: bool = False
    #: Nothing is saved: what an earlier process staged is taken to the store.
    staged: WholeCheckpoint | None = None
    #: Why a notice lets this background save come to its end.
    promoted: str = ""
    #: What became of such a one, where that was no commit.
    after: str = ""
    #: The URL of the newest checkpoint when it was asked for.
    before: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    saved: SavedCheckpoint | None = None
    error: SpotguardError | None = None

    @property
    def is_checkpoint(self) -> bool:
        """A background checkpoint, and nothing else that is done beside training."""
        return self.kind == "background" and not self.rehearsal and self.staged is None


# What a save stands on: one step, and in a job of several ranks what all of them have agreed on.

#: "first": no moment is put before the weights and a manifest of theirs are there. "early": the moments go on beside it.
Weights = Literal["with the rest", "first", "early"]


@dataclass(frozen=True, slots=True)
class SaveSpec:
    """The step alone, for a job of one process."""

    step: int
    #: Which agreement it was; its checkpoints are numbered by it. 0: there was none to be made.
    epoch: int = 0
    #: Who writes what of what several ranks hold.
    roles: RankRoles = ALL_STAY
    #: The training thread is held at the boundary until it is saved or copied: nothing changes its state meanwhile.
    parked: bool = False
    #: This rank speaks for those that are absent: the first of those that are there.
    speaks: bool = False
    #: Whether the weights are committed by themselves before the moments, and how.
    weights: Weights = "with the rest"
    #: Monotonic seconds after which nothing more comes from ranks whose machine goes.
    departing_until: float = math.inf
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
class SaveCost:
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


# What a save has made: a checkpoint that is committed.

log = logging.getLogger("spotguard")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
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

    def lacking(self, why: str) -> SavedCheckpoint:
        """The same of the lower level, where what was saved lacks moments; reported at each save.

        Args:
            why: "" where it lacks none.
        """
        if not why:
            return self
        log.error("step %d is saved without its moments: %s", self.step, why)
        return replace(self, level="weights", why=f"{why}; {self.why}" if self.why else why)
