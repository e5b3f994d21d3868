"""Actions: everything that the pure machine can request, as values. The loop carries them out in order and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..hooks.ipc.protocol import Message
from ..providers.notice import Notice
from .outcome import Outcome


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message to one session."""

    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class SignalGroup:
    """Send this signal to the command's whole process group."""

    signum: int
    #: Somebody sent it to `run`. One that announces an end goes only to processes that handle it. It comes back as an event if there
    #: is none, or if it would end one of the training processes in `trained`.
    passed_on: bool = False
    trained: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class KillGroup:
    """Send SIGKILL to the command's whole process group."""


@dataclass(frozen=True, slots=True)
class SignalSession:
    """Send this signal to one training process.

    A process that is still in `group` is left out: the agent signals that group as a whole.
    """

    session: int
    signum: int
    #: 0: signal the process in any group.
    group: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Find the processes left in the ended command's group, and those left behind by these ended training processes.

    The answer is a `GroupSeen`. The loop queues it behind the events that arrived meanwhile.
    """

    orphaned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LookAtProcess:
    """Find out whether this training process, which sends nothing, may run. The answer is a `ProcessSeen`."""

    session: int
    pid: int


@dataclass(frozen=True, slots=True)
class ReadStacks:
    """Read the stacks of these training processes from outside, because no Python runs in them, and keep them in the store."""

    run_id: str
    store: str
    step: int
    #: By pid: the rank, and its attempt (below 0: not known).
    ranks: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Write the record of a rank that was killed to the run's store, for it can write none itself."""

    #: The failure as plain JSON (`core.failures.errors.FailureCause`).
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SignalOrphans:
    """Send this signal to the processes left in these groups and sessions. Their leaders were training processes."""

    signum: int
    groups: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rest:
    """Take the terminal back: no command runs until the next `Launch`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the command, or start it again. The loop answers with `Launched`."""

    #: The machines that have gone since the last start, in order: their names and addresses, and the new meeting place.
    moves: tuple[tuple[frozenset[str], str], ...] = ()
    #: The class of the failure behind which it starts again; "" for another reason.
    failure: str = ""
    #: By class of `--recover`: its action, and how often it was taken for this run so far.
    rules: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    #: "RUN_ID:STEP": the first step behind the data that made values wrong (`--recover nan=back`); "" for none.
    skip: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Exit with this code: everything is over."""

    code: int
    #: Monotonic seconds until which spotguard may wait for the command of `--on-notice`.
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Announce:
    """Run the operator's command (`--on-notice`): a notice ends this machine."""

    notice: Notice
    #: Seconds left until the deadline.
    left: float
    #: Monotonic seconds at which the command is killed.
    until: float


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the cloud to go ahead (`--acknowledge`): everything that this notice can cost is committed."""

    notice_id: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Read this checkpoint again, beside training (`--verify-every`). The answer is a `Verified` with the same number."""

    number: int
    run_id: str
    store: str
    step: int


@dataclass(frozen=True, slots=True)
class StopVerification:
    """End the verification at once: a notice is active, or training is over."""


@dataclass(frozen=True, slots=True)
class PauseVerification:
    """Hold the verification, or let it go on: a checkpoint is being uploaded, which needs the link."""

    paused: bool


@dataclass(frozen=True, slots=True)
class FollowMachines:
    """Exchange heartbeats with the agents of these machines for a run, instead of those before. News come as `MachineSeen`."""

    #: The user and the run.
    run: tuple[int, str]
    #: By "ADDRESS PORT SECRET", the names. None: the run is over, and its secret with it.
    machines: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the record and the log line of a notice that has ended (law 13)."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Log:
    #: A level of `logging`.
    level: int
    text: str


#: Events that hold until an event of these kinds, or one of their own kind with `over`; "launch" ends those of all runs.
STANDING: dict[str, tuple[str, ...]] = {
    "blind": (),
    "stall": ("moving", "training", "launch", "gone", "failure"),
    "checkpoints-failing": ("launch", "gone"),
}


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Report this event to the helper of alerts, if one was asked for. Everything in it is plain JSON.

    The kinds are "failure", "stall", "checkpoints-failing", "moving" (a run that stood still moves again), "training" (a process
    trains), "launch" (the command is started), "gone" (a run's last process is gone) and "outcome". The helper also gets "blind".
    """

    kind: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExcludeMachine:
    """Keep the job from the machine that failed: name it in `--exclude-file`.

    If its hardware is broken, label its Kubernetes node, too.
    """

    #: Its name as the other machines know it; "": this machine.
    machine: str = ""
    #: The class of the failure.
    kind: str = "unknown"
    #: The error itself names broken hardware. The label of a node concerns all jobs, and stays until a person removes it.
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Answer a person who asked for a drill."""

    asker: int
    body: dict[str, Any]
    last: bool


Action = (
    Send
    | SignalGroup
    | KillGroup
    | SignalOrphans
    | SignalSession
    | Look
    | LookAtProcess
    | ReadStacks
    | RecordFailure
    | Rest
    | Launch
    | Finish
    | Announce
    | Acknowledge
    | Verify
    | StopVerification
    | PauseVerification
    | FollowMachines
    | Publish
    | ReportEvent
    | ExcludeMachine
    | Log
    | Tell
)
