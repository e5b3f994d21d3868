"""The words of the socket protocol: each message is a frozen value that crosses as one JSON object.

Who may say which, and when, is `protocol`'s table. *Seconds left* cross the socket, not clock times: each side
anchors them on its own monotonic clock. (The `monotonic` fields are the one exception, for the timeline:
CLOCK_MONOTONIC is one axis for all processes of a machine, and only differences are shown.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

#: Raised when a message changes meaning. Peers of different versions refuse each other by name.
VERSION = 1
#: The kind of notice that an agent makes of a `PeerPreempted`: another machine of the job goes, and this one stays.
PEER = "peer"
#: The kind of notice that is a launcher's SIGTERM to its ranks: one of them has died, or another machine joins.
LAUNCHER = "launcher"


class Message:
    """The base of all messages; `type` is the word on the wire."""

    type: ClassVar[str]


#: Word on the wire -> message.
TYPES: dict[str, type[Message]] = {}


def _on_the_wire(cls: type[Message]) -> type[Message]:
    TYPES[cls.type] = cls
    return cls


# --- a training process says ----------------------------------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Register(Message):
    """First words of a training process. The agent answers `Welcome` or `Refused`."""

    type: ClassVar[str] = "register"
    pid: int
    run_id: str
    #: The script's name, for `status`.
    name: str
    #: "" where only `on_notice` callbacks are registered.
    store: str = ""
    rank: int = 0
    world: int = 1
    #: Bytes a full save would write, 0 where not known yet.
    nbytes: int = 0
    version: int = VERSION
    #: It understands `CheckpointNow`; who does not say so is not sent one.
    checkpoints: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Delivered(Message):
    """The notice has reached the hook."""

    type: ClassVar[str] = "told"
    id: str
    monotonic: float
    #: Of a notice that no agent sent (`LAUNCHER`): its kind, where it came from, and what it leaves. An older agent passes
    #: over what becomes of it.
    kind: str = ""
    source: str = ""
    seconds_left: float = 0.0


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Progress(Message):
    """How far an emergency save is. Phases in order: "gate" (the step is fixed), "first-byte", "writing",
    "written" (every object is in the store; the manifest follows)."""

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
    """A whole checkpoint is in the store, marker and all. `id` is "" for a background checkpoint."""

    type: ClassVar[str] = "committed"
    id: str
    step: int
    nbytes: int
    #: Seconds from the first byte to the marker.
    seconds: float
    #: The checkpoint's URL.
    url: str
    monotonic: float
    #: As in its manifest: "full"; "partial-extras", which lacks what dead ranks had each of its own; or "weights", which lacks
    #: the optimizer's moments. An older hook only knows full ones.
    level: str = "full"
    #: Why it is not everything as it stood at the notice, with the numbers that decided; "" where it is.
    detail: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """This process will not commit for this notice. `last_step` is the newest committed one, -1 for none."""

    type: ClassVar[str] = "failed"
    id: str
    reason: str
    last_step: int = -1


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Position(Message):
    """Where training stands, every few seconds, for `status`."""

    type: ClassVar[str] = "position"
    step: int
    #: Newest committed checkpoint: its step (-1: none) and its age in seconds.
    checkpoint_step: int = -1
    checkpoint_age: float = 0.0
    #: As in `Committed`.
    checkpoint_level: str = "full"
    #: "window" (saves start at the notice) or "boundary" (at the next `guard.step()`), and why.
    mode: str = "window"
    detail: str = ""
    #: What an emergency save of this process would take by what its last saves have shown: seconds (below 0: not known
    #: yet), and bytes a second to the store (0: not known yet). Of ranks, where all share the work.
    save_seconds: float = -1.0
    rate: float = 0.0
    #: Seconds between background checkpoints; 0: switched off.
    interval: float = 0.0
    #: Seconds since training began here, or went back to a checkpoint; below 0: not yet (or an older hook, which does not say).
    restored_age: float = -1.0
    #: Optimizer steps since the last `guard.step()`, since training began before the first; below 0: an older hook.
    unmarked_steps: int = -1
    #: There was a `guard.step()` since training began.
    marked: bool = True
    #: What is wrong with how the script uses spotguard; what to do about it stands behind the first semicolon.
    misuse: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """Training ended by itself; the closed socket that follows is no accident."""

    type: ClassVar[str] = "bye"
    reason: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class PeerPreempted(Message):
    """Another machine of this job was noticed: this process saves with the others, and then leaves. Only to an agent whose
    `Welcome` has `calls`. Each process of the job says it, again on each new connection, and before it answers: they
    are one call. The agent tells all of them, by a `Preempt` of kind `PEER`."""

    type: ClassVar[str] = "called"
    #: Of the call, the same in every process of the job. The answers (`Delivered` … `Failed`) may carry it.
    id: str
    #: What the other machine's agent was told.
    kind: str
    source: str
    #: Until that machine may be gone. This one has no deadline.
    seconds_left: float
    monotonic: float
    detail: str = ""
    #: After the commit training goes on.
    drill: bool = False
    #: The names and addresses of that machine, with spaces between; "" where they are not known.
    gone: str = ""
    #: A name or an address of a machine that stays, the same in every process of the job: where they meet from now on, if
    #: the one that goes held the launchers' rendezvous.
    meet: str = ""


@_on_the_wire
@dataclass(frozen=True, slots=True)
class PeerCancelled(Message):
    """The call is void; training goes on."""

    type: ClassVar[str] = "uncalled"
    id: str


# --- the agent says to a training process -----------------------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    type: ClassVar[str] = "welcome"
    session: int
    pid: int
    version: int = VERSION
    #: A notice is pending: a `Preempt` follows, and whoever has not begun to train waits for it.
    notice: bool = False
    #: It understands `PeerPreempted` and `PeerCancelled`; one that does not say so is told neither.
    calls: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The peer may not join; the connection closes after it."""

    type: ClassVar[str] = "refused"
    reason: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Preempt(Message):
    """Save now. Sent again with fewer seconds when a deadline moves earlier, never later."""

    type: ClassVar[str] = "preempt"
    id: str
    #: Until the machine may be gone. `reserve` of them belong to the agent: be done before.
    seconds_left: float
    reserve: float
    kind: str
    source: str
    #: After the commit training goes on (`spotguard drill`).
    drill: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class CheckpointNow(Message):
    """Make a checkpoint beside training, soon. Nobody leaves, and there is no answer but the `Committed`."""

    type: ClassVar[str] = "checkpoint"
    #: Why, in words for the log.
    reason: str
    #: The machine goes, at a deadline that is near: also where background checkpoints are switched off.
    going: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Withdrawn(Message):
    """The notice is void; go on training."""

    type: ClassVar[str] = "withdrawn"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Resume(Message):
    """The drill is over; go on training."""

    type: ClassVar[str] = "resume"
    id: str


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Everybody is committed (or out of time): end now, with this exit code."""

    type: ClassVar[str] = "leave"
    id: str
    code: int


# --- a person, or another agent, asks ---------------------------------------------------------------------


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """`what` is "status" or "drill". `window` is the seconds a drill pretends to have."""

    type: ClassVar[str] = "ask"
    what: str
    window: float = 30.0
    #: For a drill: play it to the end, as a preemption.
    preempt: bool = False
    version: int = VERSION


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The answer to `Ask`, as plain JSON. `last` False: more answers follow on this connection."""

    type: ClassVar[str] = "answer"
    body: dict[str, Any] = field(default_factory=dict)
    last: bool = True


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Watch(Message):
    """First words of a `spotguard run` that lets the machine's service agent do the polling."""

    type: ClassVar[str] = "watch"
    pid: int
    version: int = VERSION
    #: It understands `FeedNotice.severity`; who does not say so is told of terminal notices only, for it would
    #: take every notice for one.
    severity: bool = False


@_on_the_wire
@dataclass(frozen=True, slots=True)
class Watched(Message):
    """First answer to `Watch`, and again every few seconds, as a sign of life. What the sources see follows it."""

    type: ClassVar[str] = "watched"
    #: Through how many sources the agent looks. With 0 it would never tell of a notice.
    sources: int
    #: Seconds before the end at which the cloud's own service says that its notice comes; 0: it says nothing.
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
    detail: str = ""
    #: As in `providers.notice.Severity`. An older agent knows terminal notices only.
    severity: str = "terminal"


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
    reason: str = ""
    detail: str = ""
    advice: str = ""
    #: For how long it has been seeing, or not. An older agent does not say.
    seconds: float = 0.0
