"""Messages of the socket protocol: frozen dataclasses, each sent as one JSON object.

`protocol` holds the table of which peer may send which message, and when. A deadline crosses the socket as *seconds
left*, not as a clock time: each side anchors the seconds on its own monotonic clock.

The `monotonic` fields are the one exception; they serve the timeline. CLOCK_MONOTONIC is one axis for all processes
of a machine, and only differences are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

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
#: Kind of the notice that the agent makes of a signal to `run`, or of one that the terminal sent to the command alone.
SIGNAL = "signal"
#: Kinds of notices that a rank makes, and no agent: training goes on after the save, where it can.
OF_A_RANK = frozenset({LAUNCHER, FAILURE})


class Message:
    """Base class of all messages; `type` is the name on the wire."""

    type: ClassVar[str]


_M = TypeVar("_M", bound=Message)

#: Message class by its name on the wire.
TYPES: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True)
def message(word: str) -> Callable[[type[_M]], type[_M]]:
    """Return what makes a class the message with this name on the wire."""

    def make(cls: type[_M]) -> type[_M]:
        cls.type = word
        TYPES[word] = made = dataclass(frozen=True, slots=True)(cls)
        return made

    return make


# --- sent by a training process ------------------------------------------------------------------------


@message("register")
class Register(Message):
    """First message of a training process. The agent answers `Welcome` or `Refused`."""

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
    #: The verdict of `spotguard prove` about the code of this process, in words; "" if it has no script of its own.
    proof: str = ""
    #: What `spotguard run --attach` has attached here, in words; "" if the script itself registers.
    attached: str = ""


@message("delivered")
class Delivered(Message):
    """Report that the notice has reached the hook."""

    id: str
    monotonic: float
    #: Kind, source and seconds left of a notice that no agent sent (`OF_A_RANK`). With `SIGNAL`, the source is a signal that this
    #: process holds, and the agent is asked for a notice.
    kind: str = ""
    source: str = ""
    seconds_left: float = 0.0


@message("progress")
class Progress(Message):
    """Phase of an emergency save.

    Phases in order: "gate" (the step is fixed), "first-byte", "writing", "written" (every object is in the store;
    the manifest follows).
    """

    id: str
    phase: str
    monotonic: float
    step: int = -1
    done_bytes: int = 0
    total_bytes: int = 0
    detail: str = ""


@message("committed")
class Committed(Message):
    """Report of a complete checkpoint in the store, marker included. `id` is "" for a background checkpoint."""

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


@message("failed")
class Failed(Message):
    """Report that this process will not commit for this notice.

    `last_step` is the step of the newest committed checkpoint, -1 for none.
    """

    id: str
    reason: str
    last_step: int = -1


@message("training-failed")
class TrainingFailed(Message):
    """Report of the error that ends training, before its save."""

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
    #: As in `Position`.
    good_step: int = -1


@message("position")
class Position(Message):
    """Current step and checkpoint of a training process, sent every few seconds for `status`."""

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
    #: Step of the newest committed checkpoint that is not suspect; -1 for none.
    good_step: int = -1
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


@message("bye")
class Bye(Message):
    """Report that training ended by itself, so that the agent takes the closed socket for no failure."""

    reason: str = ""


@message("peer-preempted")
class PeerPreempted(Message):
    """Report that another machine of this job got a notice: this process saves with the others, and then leaves.

    Each process of the job sends it, before it answers, and again on each new connection. Together these messages
    are one call. The agent then sends all of them a `Preempt` of kind `PEER`.
    """

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


@message("peer-cancelled")
class PeerCancelled(Message):
    """Cancellation of the call; training goes on."""

    id: str


@message("watch-machines")
class WatchMachines(Message):
    """Request for heartbeats with the agents of the job's other machines.

    The first rank of a machine sends it on each connection, to an agent whose `Welcome` has `heartbeat`.
    """

    #: By "ADDRESS PORT SECRET" of an agent: the name of its machine.
    machines: dict[str, Any] = field(default_factory=dict)


@message("unattached")
class Unattached(Message):
    """First and only message of a process below `spotguard run --attach` in which nothing is attached, yet or at its end."""

    why: str
    protocol: int = VERSION


# --- sent by the agent to a training process -----------------------------------------------------------


@message("welcome")
class Welcome(Message):
    session: int
    pid: int
    #: Whether a notice is pending. A `Preempt` follows then, and a process that has not begun to train waits for
    #: it.
    notice: bool = False
    #: "PORT SECRET" at which the agent answers the heartbeats of the run's other machines; "" if it answers none.
    heartbeat: str = ""


@message("refused")
class Refused(Message):
    """Refusal of the peer; the connection closes after it."""

    reason: str


@message("preempt")
class Preempt(Message):
    """Order to save now.

    The agent sends it again, with fewer seconds, when a deadline moves earlier. A deadline never moves later.
    """

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


@message("checkpoint")
class CheckpointNow(Message):
    """Request for a checkpoint beside training, soon. Every process stays, and `Committed` is the only answer."""

    #: Reason, for the log.
    reason: str
    #: Whether the machine goes at a near deadline. The process then saves even if background checkpoints are
    #: switched off.
    going: bool = False


@message("damaged")
class CheckpointDamaged(Message):
    """Report that a checkpoint of the run cannot be restored. The side that finds it tells the other one.

    From then on neither side counts on the checkpoint. The process makes another one beside training, soon.
    """

    #: Name of the checkpoint in the store.
    checkpoint: str
    #: Completed steps of the checkpoint.
    step: int
    #: The damage.
    reason: str = ""
    #: The keys of its damaged objects, from the agent (`text.key_list`).
    objects: str = ""


@message("withdrawn")
class Withdrawn(Message):
    """Cancellation of the notice; training goes on."""

    id: str


@message("resume")
class Resume(Message):
    """End of the drill; training goes on."""

    id: str


@message("leave")
class Leave(Message):
    """Order to end now, with this exit code: every process has committed, or is out of time."""

    id: str
    code: int
