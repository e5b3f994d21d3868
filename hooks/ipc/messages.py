"""Messages of the socket protocol: frozen dataclasses, each sent as one JSON object.

`protocol` holds the table of which peer may send which message, and when. A deadline crosses the socket as *seconds
left*, not as a clock time: each side anchors the seconds on its own monotonic clock.

The `monotonic` fields are the one exception; they serve the timeline. CLOCK_MONOTONIC is one axis for all processes
of a machine, and only differences are shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

#: Increase this number when a message changes. A peer's first message has it, and the agent refuses every other number.
VERSION = 1
#: Kind of the notice that an agent makes from a `PeerPreempted`: another machine of the job goes, and this one
#: stays.
PEER = "peer"
#: Kind of the notice that an agent makes when a run stands still: the process keeps its stacks and saves, and training goes on.
STALL = "stall"
#: Kind of the notice that an agent makes when a run has stood still for too long: the process saves and ends.
RESTART = "restart"
#: Kinds of notices of a job that stands still: that one, and the one that ends it, so that it starts again.
STALL_KINDS = frozenset({STALL, RESTART})
#: Phases of training that have a usual length: those of every step, and the rarer ones. Beside them a position has "save", those
#: before training, and "" if nothing is known.
STEP_PHASES = ("data", "forward", "backward", "optimizer", "collective")
PHASES = (*STEP_PHASES, "evaluation", "process", "other")
#: Phases between `register` and the end of the first restore: the script's own work and the restore; and a wait of spotguard's for
#: the other ranks, which has limits of its own.
START, START_WAIT = "start", "ranks"
#: The names of a script's own metrics, and how many of them a process may have.
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOST_METRICS = 16
#: Kind of the notice for a launcher's SIGTERM to its ranks: one rank has died, or another machine joins.
LAUNCHER = "launcher"
#: Kind of the notice that a rank makes of the error that ends it.
FAILURE = "failure"
#: Kinds of notices that a rank makes, and no agent: training goes on after the save, where it can.
OF_A_RANK = frozenset({LAUNCHER, FAILURE})


class Message:
    """Base class of all messages; `type` is the name on the wire."""

    type: ClassVar[str]


#: Message class by its name on the wire.
TYPES: dict[str, type[Message]] = {}


def _on_the_wire(cls: type[Message]) -> type[Message]:
    TYPES[cls.type] = cls
    return cls


# --- sent by a training process ------------------------------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Register(Message):
    """First message of a training process. The agent answers `Welcome` or `Refused`."""

    type: ClassVar[str] = "register"
    pid: int
    run_id: str
    #: The script's name, for `status`.
    name: str
    #: Store URL; "" if only `on_notice` callbacks are registered.
    store: str = ""
    rank: int = 0
    world: int = 1
    #: Bytes that a full save would write; 0 while unknown.
    nbytes: int = 0
    protocol: int = VERSION
    #: Whether the process makes a checkpoint at `CheckpointNow`. One that has only `on_notice` callbacks makes none.
    checkpoints: bool = False
    #: Whether ranks of this job run on other machines, whose agents then exchange heartbeats with this one's.
    elsewhere: bool = False
    #: "PORT SECRET" at which the other machines look for this machine's agent, as an agent before this one gave it;
    #: "" if none did.
    heartbeat: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Delivered(Message):
    """Report that the notice has reached the hook."""

    type: ClassVar[str] = "delivered"
    id: str
    monotonic: float
    #: Kind, source and seconds left of a notice that no agent sent (`OF_A_RANK`).
    kind: str = ""
    source: str = ""
    seconds_left: float = 0.0


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Progress(Message):
    """Phase of an emergency save.

    Phases in order: "gate" (the step is fixed), "first-byte", "writing", "written" (every object is in the store;
    the manifest follows).
    """

    type: ClassVar[str] = "progress"
    id: str
    phase: str
    monotonic: float
    step: int = -1
    done_bytes: int = 0
    total_bytes: int = 0
    detail: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Committed(Message):
    """Report of a complete checkpoint in the store, marker included. `id` is "" for a background checkpoint."""

    type: ClassVar[str] = "committed"
    id: str
    step: int
    nbytes: int
    #: Seconds from the first byte to the marker.
    seconds: float
    #: The checkpoint's URL.
    url: str
    monotonic: float
    #: Level as in the manifest. "partial-extras" lacks the own state of each dead rank. "weights" lacks the
    #: optimizer's moments.
    level: str = "full"
    #: Why the checkpoint is not the complete state at the notice, with the deciding numbers; "" if it is.
    detail: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """Report that this process will not commit for this notice.

    `last_step` is the step of the newest committed checkpoint, -1 for none.
    """

    type: ClassVar[str] = "failed"
    id: str
    reason: str
    last_step: int = -1


@_on_the_wire
@dataclass(frozen=True, slots=True)
class TrainingFailed(Message):
    """Report of the error that ends training, before its save."""

    type: ClassVar[str] = "training-failed"
    #: As in `ipc.failures.diagnosis.DiagnosedError`.
    kind: str
    error: str
    #: The first line of the error's message.
    message: str
    where: str
    phase: str
    fingerprint: str
    #: The completed steps.
    step: int
    #: As in `ipc.failures.diagnosis.DiagnosedError`.
    stays: bool = False
    #: Whether the attempt before ended by the same error at the same step, and left its machine for it.
    repeats: bool = False
    #: As in `ipc.failures.diagnosis.DiagnosedError`.
    confidence: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Position(Message):
    """Current step and checkpoint of a training process, sent every few seconds for `status`."""

    type: ClassVar[str] = "position"
    step: int
    #: Newest committed checkpoint: its step (-1 for none) and its age in seconds.
    checkpoint_step: int = -1
    checkpoint_age: float = 0.0
    #: As in `Committed`.
    checkpoint_level: str = "full"
    #: The path and the type of each value that no save can hold, which the newest checkpoint lacks.
    checkpoint_left_out: str = ""
    #: "window" (saves start at the notice) or "boundary" (saves start at the next `guard.step()`), and the reason.
    mode: str = "window"
    detail: str = ""
    #: Estimate for an emergency save of this process, from its last saves: seconds (negative while unknown) and
    #: bytes a second to the store (0 while unknown). If several ranks share the work, the estimate covers all of
    #: them.
    save_seconds: float = -1.0
    rate: float = 0.0
    #: Seconds between background checkpoints; 0 if they are switched off.
    interval: float = 0.0
    #: Seconds since training began here or went back to a checkpoint. Negative: not yet.
    restored_age: float = -1.0
    #: Optimizer steps since the last `guard.step()`; before the first call, since training began. Negative: it
    #: has not begun.
    unmarked_steps: int = -1
    #: Whether the script has called `guard.step()` since training began.
    marked: bool = True
    #: How the script misuses spotguard. The remedy follows the first semicolon.
    misuse: str = ""
    #: As in `progress.ProgressSeen`. Without a guard there is none.
    phase: str = ""
    still: float = -1.0
    where: str = ""
    limit: float = -1.0
    #: Number of this start of the run. Below 0: no guard.
    attempt: int = -1
    #: The newest loss that was read, as text, because JSON has no "nan"; "" if the script gives none.
    loss: str = ""
    #: Why this rank's losses make a checkpoint of this step suspect.
    suspect: str = ""
    #: How losses are far above the usual ones; and the steps with such losses, and with losses that are not finite.
    high_loss: str = ""
    bad_loss_steps: int = 0
    #: Why the newest background checkpoint failed; "" if none has, or a later one is committed.
    failing: str = ""
    #: Whether a background checkpoint is on its way to the store.
    uploading: bool = False
    #: How often each class of failure has ended this run, in all its attempts (`failure_classes.counts_of`).
    failures: dict[str, Any] = field(default_factory=dict)
    #: Median seconds of a step in the attempt before; 0 if not known.
    earlier_step_seconds: float = 0.0
    #: The newest value of each metric of the script's own, as text like `loss`.
    metrics: dict[str, Any] = field(default_factory=dict)


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """Report that training ended by itself, so that the agent takes the closed socket for no failure."""

    type: ClassVar[str] = "bye"
    reason: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class PeerPreempted(Message):
    """Report that another machine of this job got a notice: this process saves with the others, and then leaves.

    Each process of the job sends it, before it answers, and again on each new connection. Together these messages
    are one call. The agent then sends all of them a `Preempt` of kind `PEER`.
    """

    type: ClassVar[str] = "peer-preempted"
    #: Id of the call, the same in every process of the job. The answers (`Delivered` … `Failed`) may carry it.
    id: str
    #: Kind and source of the other machine's notice.
    kind: str
    source: str
    #: Seconds until the other machine may be gone. This machine has no deadline.
    seconds_left: float
    monotonic: float
    detail: str = ""
    #: Whether training goes on after the commit.
    drill: bool = False
    #: Names and addresses of the other machine, separated by spaces; "" while unknown.
    gone: str = ""
    #: Name or address of a machine that stays, the same in every process of the job. The processes meet there from
    #: now on, if the machine that goes held the launchers' rendezvous.
    meet: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class PeerCancelled(Message):
    """Cancellation of the call; training goes on."""

    type: ClassVar[str] = "peer-cancelled"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class WatchMachines(Message):
    """Request for heartbeats with the agents of the job's other machines.

    The first rank of a machine sends it on each connection, to an agent whose `Welcome` has `heartbeat`.
    """

    type: ClassVar[str] = "watch-machines"
    #: By "ADDRESS PORT SECRET" of an agent: the name of its machine.
    machines: dict[str, Any] = field(default_factory=dict)


# --- sent by the agent to a training process -----------------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    type: ClassVar[str] = "welcome"
    session: int
    pid: int
    #: Whether a notice is pending. A `Preempt` follows then, and a process that has not begun to train waits for
    #: it.
    notice: bool = False
    #: "PORT SECRET" at which the agent answers the heartbeats of the run's other machines; "" if it answers none.
    heartbeat: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Refusal of the peer; the connection closes after it."""

    type: ClassVar[str] = "refused"
    reason: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Preempt(Message):
    """Order to save now.

    The agent sends it again, with fewer seconds, when a deadline moves earlier. A deadline never moves later.
    """

    type: ClassVar[str] = "preempt"
    id: str
    #: Seconds until the machine may be gone. The last `reserve` seconds belong to the agent: the save must be done
    #: before them.
    seconds_left: float
    reserve: float
    kind: str
    source: str
    #: Whether training goes on after the commit (`spotguard drill`).
    drill: bool = False
    #: What the agent knows beyond that, for the record: at a stall, the rank and the place. It may be "".
    detail: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class CheckpointNow(Message):
    """Request for a checkpoint beside training, soon. Every process stays, and `Committed` is the only answer."""

    type: ClassVar[str] = "checkpoint"
    #: Reason, for the log.
    reason: str
    #: Whether the machine goes at a near deadline. The process then saves even if background checkpoints are
    #: switched off.
    going: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class CheckpointDamaged(Message):
    """Report that a checkpoint of the run cannot be restored. The side that finds it tells the other one.

    From then on neither side counts on the checkpoint. The process makes another one beside training, soon.
    """

    type: ClassVar[str] = "damaged"
    #: Name of the checkpoint in the store.
    checkpoint: str
    #: Completed steps of the checkpoint.
    step: int
    #: The damage.
    reason: str = ""
    #: The keys of its damaged objects, from the agent (`text.key_list`).
    objects: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Withdrawn(Message):
    """Cancellation of the notice; training goes on."""

    type: ClassVar[str] = "withdrawn"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Resume(Message):
    """End of the drill; training goes on."""

    type: ClassVar[str] = "resume"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Order to end now, with this exit code: every process has committed, or is out of time."""

    type: ClassVar[str] = "leave"
    id: str
    code: int


# --- exchanged with a person, or with another agent ----------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Question of a person. `what` is "status" or "drill"; `window` is the seconds that a drill pretends to have."""

    type: ClassVar[str] = "ask"
    what: str
    window: float = 30.0
    #: For a drill: run it to the end, as a preemption.
    preempt: bool = False
    protocol: int = VERSION


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Answer(Message):
    """Answer to `Ask`, as plain JSON. If `last` is False, more answers follow on this connection."""

    type: ClassVar[str] = "answer"
    body: dict[str, Any] = field(default_factory=dict)
    last: bool = True


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Watch(Message):
    """First message of a `spotguard run` that lets the machine's service agent poll the sources."""

    type: ClassVar[str] = "watch"
    pid: int
    protocol: int = VERSION


@dataclass(frozen=True, slots=True)
class Foreign(Message):
    """First message of a peer of another version. Nothing else of it is read, and the agent refuses the peer."""

    type: ClassVar[str] = "foreign"
    version: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Watched(Message):
    """First answer to `Watch`, repeated every few seconds as a sign of life.

    Notices and health of the sources follow it.
    """

    type: ClassVar[str] = "watched"
    #: Number of sources that the agent polls. With 0 it would never report a notice.
    sources: int
    #: Seconds of warning that the cloud's own service announces; 0 if it announces none.
    window: float = 0.0


@_on_the_wire
@dataclass(frozen=True, slots=True)
class FeedNotice(Message):
    type: ClassVar[str] = "notice"
    id: str
    kind: str
    source: str
    seconds_left: float
    window: float
    detail: str
    #: Severity as in `providers.notice.Severity`.
    severity: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class FeedNoticeGone(Message):
    type: ClassVar[str] = "notice-gone"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class FeedHealth(Message):
    type: ClassVar[str] = "health"
    source: str
    sight: str
    reason: str
    detail: str
    advice: str
    #: Seconds for which the source has had this sight.
    seconds: float
