"""A notice as a value, and the seam every source of notices stands behind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from .health import Health, blind

log = logging.getLogger("spotguard.providers")

#: Seconds. Two readings of one wall-clock deadline differ by this much and mean nothing.
JITTER = 0.5


class Severity(StrEnum):
    """What a notice asks for."""

    #: The machine, or the command, goes away at the deadline: save everything, then leave.
    TERMINAL = "terminal"
    #: It goes away at a deadline that may be days off: go on, and treat it as terminal when it is near.
    LATER = "later"
    #: It may go, or pause: make a checkpoint beside training, and go on. 21 of 30 such warnings came to nothing
    #: (aws-node-termination-handler#141).
    ADVISORY = "advisory"


class NoticeKind(StrEnum):
    """Why the command has to go, or may have to."""

    TERMINATE = "terminate"  # AWS `instance-action`, Azure `Terminate`: the machine is deleted
    STOP = "stop"  # AWS, GCP: stopped, its disks kept
    HIBERNATE = "hibernate"  # AWS: hibernation begins at once, there is no window
    PREEMPT = "preempt"  # GCP `preempted`, Azure `Preempt`: a spot machine is taken back
    REBOOT = "reboot"  # AWS and Azure maintenance: memory is lost
    REDEPLOY = "redeploy"  # Azure: moved to another host, memory and local disks are lost
    MAINTENANCE = "maintenance"  # AWS, GCP: the host needs work, and the machine ends for it
    MIGRATE = "migrate"  # GCP: moved while it runs; nothing is lost
    FREEZE = "freeze"  # Azure: paused for some seconds; nothing is lost
    REBALANCE = "rebalance"  # AWS, Azure: an interruption has become likelier
    DEADLINE = "deadline"  # `--deadline`: a reservation or a queue's time limit ends
    OPERATOR = "operator"  # somebody said so, in a file or on a FIFO
    SIGNAL = "signal"  # somebody sent SIGTERM to `spotguard run`
    DRILL = "drill"  # somebody asked for a rehearsal
    LAUNCHER = (
        "launcher"  # torchrun and its kind ended the ranks: one of them has died, or another machine joins
    )
    PEER = "peer"  # another machine of the job goes; this one stays, and starts again without it
    ORPHAN = "orphan"  # `spotguard run` was killed, and the next one ends the command that it guarded
    UNKNOWN = "unknown"  # a cloud said something newer than this program: taken as terminal


@dataclass(frozen=True, slots=True)
class Notice:
    """One warning. Two sightings with the same `id` are the same warning, however often it is polled."""

    #: Made from what the cloud said (kind and its own time or id), so that re-reading it changes nothing. Where it is
    #: new at each change all the same, the new one is shown before, or with, the going of the old.
    id: str
    kind: NoticeKind
    #: Who said so, in words a person knows: "aws spot/instance-action".
    source: str
    #: Monotonic seconds (`Clock.monotonic`) at which the machine may be gone.
    deadline: float
    #: Monotonic seconds at which this program first read it.
    seen_at: float
    severity: Severity = Severity.TERMINAL
    #: The cloud's own words, for the log: at most one short line.
    detail: str = ""
    #: The nominal warning of this kind in seconds: what `--reserve`'s tenth is a tenth of. Of a LATER it means nothing:
    #: it becomes terminal with a window of its own (`agent.core.upcoming`).
    window: float = 120.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look at a source showed: how well it can see, and every notice that stands there now."""

    health: Health
    notices: tuple[Notice, ...] = ()


def looked(name: str, look: Callable[[], Sighting]) -> Sighting:
    """One look of the source of this name, as `NoticeSource.poll` promises it: whatever is raised is blindness."""
    try:
        return look()
    except Exception as error:  # a bug of ours must make us blind, which is seen, not dead, which is not
        log.debug("a look at %s failed", name, exc_info=True)
        return Sighting(blind("garbage", f"{type(error).__name__}: {error}"))


class NoticeSource(Protocol):
    """One key of a cloud, or another thing that warns: one thread owns a source and calls `poll` for ever.

    A cloud is several sources, each with a cadence and a health of its own: what ends the machine is asked for every
    second or hangs in a long poll, what merely warns of it every ten seconds.

    `poll` never raises: whatever the network or the server did becomes a `Health` that is not SEEING, because
    an agent that dies of a bad answer is blind for good (aws-node-termination-handler#916).
    """

    #: Shown in logs and in `status`: "aws spot/instance-action".
    name: str
    #: Seconds from the start of one poll to the start of the next. Small for a long poll, whose answers set the pace.
    interval: float
    #: Seconds that one poll may take, by its own timeouts, all of them together: after more it hangs (`agent.sources.poller.PollDeadline`).
    longest: float
    #: Whether a notice that vanishes while the source is SEEING was withdrawn (Azure: yes. AWS: not documented).
    withdraws: bool

    def poll(self) -> Sighting:
        """Look once: within `longest`."""
        ...

    def close(self) -> None:
        """Give back connections. Called once, by the thread that polls."""
        ...


@runtime_checkable
class Promising(Protocol):
    """A source whose service itself says how long before the end its notice comes (GCE's notice duration)."""

    @property
    def told(self) -> float | None:
        """Seconds, by its newest word; None where it has said none. Read by the thread that polls."""
        ...


@runtime_checkable
class Acknowledging(Protocol):
    """A source whose cloud may be told to go ahead (Azure's `StartRequests`)."""

    def acknowledge(self, notice_id: str) -> None:
        """Everything that this notice can cost is saved: it may begin now. For any thread; the one that polls sends
        it, and only where nobody else is concerned. What is no notice of this source's is nothing to it."""
        ...
