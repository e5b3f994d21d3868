"""The values of a save: its request, the agreement that it follows, its context and its result.

- `SaveRequest`: the request to the saving thread, and its outcome.
- `SaveSpec`: the agreement that a save follows: one step, and in a job of several ranks the points that all agreed on.
- `SaveCost`: the cost of one rank's part.
- `SaveContext`: a save on its way: which state of which step, how it is read, and the names under which it is written.
- `StagedSave`: the copy of its bytes on a disk of this machine.
- `SavedCheckpoint`: the result: a committed checkpoint. `SavedCheckpoints` keeps the newest.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...providers.errors import CheckpointError, SpotguardError
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.format.manifest import Kind, Level
from ..commit.cancel_scope import CancelScope
from ..commit.plan.damage import FoundDamage
from ..commit.plan.partitioner import ALL_STAY, RankRoles
from ..commit.plan.write_plan import WriteProgress, WrittenState
from ..commit.upload.object_in_flight import Progress
from ..commit.upload.transfer import Fill, StateChanged
from ..ipc.notice import PreemptionNotice
from ..state.changes.audit import Reference
from ..state.collected import CollectedState
from ..state.device.host_buffer import HostBuffer
from ..state.device_boundary import DeviceBoundary
from ..state.state import State
from ..state.state_tensor import StateTensor

#: Why a copy of the state is not kept if no checksums were taken at its boundary. It may equal the boundary: nothing tells.
UNCHECKED = "no checksums were taken at its boundary"


@dataclass(frozen=True, slots=True)
class SaveContext:
    """The inputs of one save on its way."""

    state: State | DeviceBoundary
    collected: CollectedState
    agreed: SaveSpec
    #: The names of its checkpoints, all of the attempt in which it began: an emergency save may need a second one, for its lower
    #: level.
    names: Iterator[CheckpointName]
    kind: Kind
    scope: CancelScope
    progress: Progress | None
    #: The state is read in place, in training's memory, and not from a copy.
    in_place: bool
    #: The copy of its bytes on this machine's disk; `collected` does not have them then.
    held: StagedSave | None = None
    #: Digests of the tensors that other ranks hold too, if there was time to take them.
    digests: Mapping[str, int] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[int, int]:
        """The step, and the number of its state's taking: after a `restore` to the same step the number is another."""
        return self.agreed.step, self.state.taken

    def reference(self) -> Reference | None:
        """Wait for the checksums of this boundary and return them; None if training is parked there, so that nothing changes.

        Raises:
            Abandoned: the save was called off.
            StateChanged: no checksums were taken.
        """
        if self.agreed.parked:
            return None
        audit = self.state.audit
        self.scope.wait(lambda: audit.wanted < 0, audit.ready)
        if (reference := audit.reference) is None:
            raise StateChanged(UNCHECKED)
        return reference

    def check(self, reference: Reference | None, state_tensors: Sequence[StateTensor]) -> str:
        """Return what differs from the boundary, in live memory or in a copy of it; "" if nothing does."""
        return "" if reference is None else reference.differs(state_tensors, self.scope.pause)

    def check_written(self, reference: Reference | None, written: WrittenState) -> None:
        """Check the bytes that were written from live memory against the boundary.

        Raises:
            StateChanged: they differ from the boundary.
        """
        if reference is not None and (
            why := reference.differs_from_written(
                written.tensors, self.collected.state_tensors, self.scope.pause
            )
        ):
            raise StateChanged(why)

    @property
    def step(self) -> int:
        return self.agreed.step

    def moved(self) -> str:
        """Return what has moved since the boundary; "" if nothing has.

        A save asks this after each object: a swap there and back would escape every check at the end.
        """
        return self.state.inconsistency() if self.in_place else ""


@dataclass(frozen=True, slots=True)
class StagedSave:
    """A checkpoint on the stage, under the name that it will have in the store."""

    name: CheckpointName
    #: Its objects on the stage, and their CRCs.
    write_progress: WriteProgress
    #: Reads the objects back.
    fill: Fill[HostBuffer]


# --- the request ---


@dataclass(slots=True)
class SaveRequest:
    """A request to the saving thread: one save, or other work that waits its turn behind saves."""

    kind: Kind
    scope: CancelScope
    preemption: PreemptionNotice | None = None
    #: The number of the ranks' call that asked for it; 0 in a job of one process.
    epoch: int = 0
    #: Ranks whose machine goes, according to that call.
    departing: frozenset[int] = frozenset()
    #: The save needs a parked boundary: some rank's state moved while it was read.
    at_boundary: bool = False
    #: Training stood still in all of the job when the request was made. A notice of another kind may have joined since.
    stall: bool = False
    #: The gate was shut when the request was made, and stays shut for it until its turn comes.
    holds: bool = False
    #: A later call has replaced it: its outcome answers no notice.
    superseded: bool = False
    #: The saving thread makes only the plan, and saves nothing.
    rehearsal: bool = False
    #: The checkpoint that an earlier process staged, which the saving thread uploads instead of saving anything.
    staged: WholeCheckpoint | None = None
    #: Why this background save finishes in spite of a notice; "" if no notice promoted it.
    promoted: str = ""
    #: The outcome of a promoted save, if it was not a commit.
    after: str = ""
    #: The URL of the newest checkpoint when the request was made.
    before: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    saved: SavedCheckpoint | None = None
    error: SpotguardError | None = None

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a background checkpoint, and no other work beside training."""
        return self.kind == "background" and not self.rehearsal and self.staged is None


# --- the agreement ---

#: "first": no moment is put before the weights and their manifest are in the store. "early": the moments go on beside that
#: manifest.
Weights = Literal["with the rest", "first", "early"]


@dataclass(frozen=True, slots=True)
class SaveSpec:
    """The agreement that a save follows. In a job of one process it is the step alone."""

    step: int
    #: The number of the agreement, by which its checkpoints are numbered; 0 if no agreement was needed.
    epoch: int = 0
    #: The roles by which ranks share the writing of tensors that several of them hold.
    roles: RankRoles = ALL_STAY
    #: The training thread waits at the boundary until the state is saved or copied, so nothing changes the state meanwhile.
    parked: bool = False
    #: The boundary of this step, which the devices hold and the host has passed; None: it is the last boundary.
    held_by_devices: DeviceBoundary | None = None
    #: This rank puts the manifests of the absent ranks: it is the first of the present ranks.
    speaks: bool = False
    #: The store in which the ranks agreed: 0 for the job's own, 1 for the second one. A cut network has ranks on both sides.
    side: int = 0
    #: Whether the weights are committed by themselves before the moments, and how.
    weights: Weights = "with the rest"
    #: Monotonic seconds after which nothing more comes from the ranks whose machine goes.
    departing_until: float = math.inf
    #: Ranks whose save for this agreement has failed, with the reason. The mapping grows during the save.
    failed: Mapping[int, str] = field(default_factory=dict)
    #: Why some ranks are absent; "" if none is.
    why: str = ""

    @property
    def extent(self) -> tuple[Level, str]:
        """The level of a save of everything that the present ranks hold, and why it is not full; "" if it is."""
        return ("partial-extras", self.why) if self.roles.absent else ("full", "")

    @property
    def number(self) -> int:
        """The save number from which the agreement counts: a save makes two checkpoints at most, the lower level's first."""
        return 2 * self.epoch


class SaveNumbers:
    """The one counter that numbers the checkpoints of all saves of a process."""

    def __init__(self) -> None:
        #: The save number of the next checkpoint.
        self._next = 0

    def names(self, attempt: int, agreed: SaveSpec) -> Iterator[CheckpointName]:
        """Yield the names of one save's checkpoints, which no other save has.

        A call of the ranks moves the counter on to a number that all of them know.

        Raises:
            CheckpointError: the ranks' call is no later one than that of the last save.
        """
        if agreed.number < self._next and agreed.epoch:
            raise CheckpointError(f"the ranks' call {agreed.epoch} has been saved, or a later one has")
        self._next = max(self._next, agreed.number)
        while True:
            self._next += 1
            yield CheckpointName(attempt, agreed.step, self._next - 1)


@dataclass(frozen=True, slots=True)
class SaveCost:
    """The cost of a rank's part of a save."""

    #: Bytes that the rank would write, of the weights and of the moments.
    weights: int
    moments: int
    #: Bytes a second to the store; None if not known yet.
    rate: float | None
    #: Seconds for a commit.
    commit: float

    @property
    def seconds(self) -> float | None:
        """Seconds until its commit; None if not known yet."""
        return None if self.rate is None else (self.weights + self.moments) / self.rate + self.commit


# --- the result ---

log = logging.getLogger("spotguard")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A committed checkpoint: the result of `guard.save()`.

    Example:
        saved = guard.save()
        print(f"step {saved.step}: {saved.nbytes} bytes in {saved.seconds:.1f} s at {saved.url}")
    """

    #: Completed steps.
    step: int
    url: str
    #: Bytes that the save has written.
    nbytes: int
    #: Seconds from the first byte to the commit.
    seconds: float
    #: Monotonic seconds of the commit.
    at: float
    #: "weights": the optimizer's moments did not fit into the window, or an optimizer that is not registered has them.
    #: "partial-extras": ranks were gone, and with them the state that each held alone.
    level: Level = "full"
    #: Why it is not the whole exact state, with the numbers that decided; "" if it is.
    why: str = ""
    #: Seconds for which training stood still, for a background checkpoint.
    blocked: float = 0.0
    #: Why some rank's losses make it suspect; "" if none do.
    suspect: str = ""
    #: The path and the type of each value of any rank that no save can hold: a restore leaves the live one.
    left_out: tuple[str, ...] = ()
    #: Its name, and the keys of the earlier checkpoints' objects that this rank's part refers to. Only spotguard uses them.
    name: CheckpointName | None = field(default=None, repr=False, compare=False)
    refers: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def less(self) -> str:
        """What it lacks, for a person; "" if it lacks nothing."""
        left_out = f"left out: {', '.join(self.left_out)}" if self.left_out else ""
        return "; ".join(filter(None, [self.why, left_out]))

    def lacking(self, why: str) -> SavedCheckpoint:
        """Return this checkpoint as one of the lower level if its state lacks moments, and log that at each save.

        Args:
            why: why moments are missing; "" if none are.
        """
        if not why:
            return self
        log.error("step %d is saved without its moments: %s", self.step, why)
        return replace(self, level="weights", why=f"{why}; {self.why}" if self.why else why)


class SavedCheckpoints:
    """The newest committed checkpoints of a run, of this attempt or the one that training was restored from.

    Args:
        damage: the checkpoints that are damaged. Anybody who finds or hears of one adds it.
    """

    def __init__(self, damage: FoundDamage) -> None:
        self.damage = damage
        #: The newest one, damaged or not, and the newest that has its moments.
        self._newest: SavedCheckpoint | None = None
        self._with_moments: SavedCheckpoint | None = None
        #: The newest that is not suspect.
        self._good: SavedCheckpoint | None = None

    def add(self, saved: SavedCheckpoint) -> None:
        self._newest = saved
        if saved.level != "weights":
            self._with_moments = saved
        if not saved.suspect:
            self._good = saved
        self.report_newest()

    def forget(self) -> None:
        self._newest = self._with_moments = self._good = None

    @property
    def newest(self) -> SavedCheckpoint | None:
        """The newest one. None if it is damaged."""
        saved = self._newest
        return None if saved is None or self.damage_of(saved) else saved

    @property
    def complete(self) -> int:
        """The step of the newest one that has its moments. -1: there is none, or it is damaged."""
        return self._step_of(self._with_moments)

    @property
    def good(self) -> int:
        """The step of the newest one that is not suspect. -1: there is none, or it is damaged."""
        return self._step_of(self._good)

    def _step_of(self, saved: SavedCheckpoint | None) -> int:
        return -1 if saved is None or self.damage_of(saved) else saved.step

    def damage_of(self, saved: SavedCheckpoint) -> str:
        """Return why a committed checkpoint cannot be restored, as far as anybody has found; "" if nobody has."""
        return "" if saved.name is None else self.damage.of(saved.name, saved.refers)

    def report_newest(self) -> None:
        """Add the newest ones to the damaged ones if this rank's part of them is: other ranks do not know what it uses."""
        for saved in (self._newest, self._with_moments):
            if saved is not None and saved.name is not None and (why := self.damage_of(saved)):
                self.damage.add(saved.name, why)

    def sound(self, saved: SavedCheckpoint) -> SavedCheckpoint:
        """Return the checkpoint of a save without a deadline, unless it was found damaged meanwhile, as by the prune after it.

        Raises:
            CheckpointError: it was.
        """
        if why := self.damage_of(saved):
            raise CheckpointError(f"step {saved.step} was committed, and cannot be restored: {why}")
        return saved
