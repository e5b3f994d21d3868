"""Notices as values, and the protocol that every source of notices implements."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from .health import Health, blind

log = logging.getLogger("spotguard.providers")

#: Seconds by which two readings of one wall-clock deadline may differ without meaning anything.
JITTER = 0.5


class Severity(StrEnum):
    """The response that a notice asks for."""

    #: The machine, or the command, ends at the deadline: save everything, then leave.
    TERMINAL = "terminal"
    #: The machine ends at a deadline that may be days off: go on, and treat the notice as terminal when it is near.
    LATER = "later"
    #: The machine may end, or pause: save a checkpoint in the background, and go on. 21 of 30 such warnings came to
    #: nothing (aws-node-termination-handler#141).
    ADVISORY = "advisory"


class NoticeKind(StrEnum):
    """Why the command must end, or may have to."""

    TERMINATE = "terminate"  # AWS `instance-action`, Azure `Terminate`: the machine is deleted
    STOP = "stop"  # AWS, GCP: stopped, its disks kept
    HIBERNATE = "hibernate"  # AWS: hibernation begins at once, there is no window
    PREEMPT = "preempt"  # GCP `preempted`, Azure `Preempt`: the cloud takes a spot machine back
    REBOOT = "reboot"  # AWS and Azure maintenance: memory is lost
    REDEPLOY = "redeploy"  # Azure: moved to another host, memory and local disks are lost
    MAINTENANCE = "maintenance"  # AWS, GCP: the host needs maintenance, and the machine ends for it
    MIGRATE = "migrate"  # GCP: moved while it runs; nothing is lost
    FREEZE = "freeze"  # Azure: paused for some seconds; nothing is lost
    REBALANCE = "rebalance"  # AWS, Azure: an interruption has become likelier
    DEADLINE = "deadline"  # `--deadline`: a reservation or a queue's time limit ends
    OPERATOR = "operator"  # a person asked for it, in a file or on a FIFO
    SIGNAL = "signal"  # a process or a person sent SIGTERM to `spotguard run`, or another signal that would end training
    DRILL = "drill"  # a person asked for a rehearsal
    LAUNCHER = "launcher"  # torchrun or a similar launcher ended the ranks: one of them died, or another machine joins
    FAILURE = "failure"  # a rank met an error that ends it: the other ranks save with it
    PEER = "peer"  # another machine of the job ends; this one stays, and restarts the command without that machine
    ORPHAN = "orphan"  # `spotguard run` was killed, and the next one ends the command that it guarded
    MEMORY = "memory"  # the machine or the job is about to run out of memory: a checkpoint is made, and nothing is ended
    RESTART = "restart"  # training stands still for too long: it ends, and the command starts again here (`--recover`)
    STALL = "stall"  # training stands still: its state is saved where it stands, and nothing is ended
    UNKNOWN = "unknown"  # a cloud sent a value newer than this program: treated as terminal


@dataclass(frozen=True, slots=True)
class Notice:
    """One warning. Two sightings with the same `id` are the same warning, however often the source is polled."""

    #: Made from the cloud's values (kind and its own time or id), so that reading the notice again keeps the id.
    #: If a source's id does change, the source shows the new one before, or together with, the end of the old one.
    id: str
    kind: NoticeKind
    #: The origin, in words that a user knows: "aws spot/instance-action".
    source: str
    #: Monotonic seconds (`Clock.monotonic`) at which the machine may be gone.
    deadline: float
    #: Monotonic seconds at which this program first read the notice.
    seen_at: float
    severity: Severity = Severity.TERMINAL
    #: The cloud's own words, for the log: at most one short line.
    detail: str = ""
    #: The nominal warning of this kind in seconds; `--reserve` is by default a tenth of it. Meaningless for LATER: such a
    #: notice becomes terminal with a window of its own (`agent.core.upcoming`).
    window: float = 120.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """The result of one poll: the source's health, and every notice that the source shows now."""

    health: Health
    notices: tuple[Notice, ...] = ()


def looked(name: str, look: Callable[[], Sighting]) -> Sighting:
    """Run one poll of the source `name`, and report any exception as blindness, as `NoticeSource.poll` promises."""
    try:
        return look()
    except Exception as error:
        # A bug in a source must make it blind, which users see. A dead thread would go unseen.
        log.debug("a look at %s failed", name, exc_info=True)
        return Sighting(blind("garbage", f"{type(error).__name__}: {error}"))


class NoticeSource(Protocol):
    """One key of a cloud, or another origin of warnings. One thread owns a source and calls `poll` for ever.

    A cloud is several sources, each with its own interval and health. A key that announces the machine's end is
    polled every second, or by a long poll. A key that only warns is polled every ten seconds.

    `poll` never raises. Every failure of the network or the server becomes a `Health` that is not SEEING. An agent that
    dies of a bad answer would be blind for good (aws-node-termination-handler#916).
    """

    #: The name in logs and in `status`: "aws spot/instance-action".
    name: str
    #: Seconds from the start of one poll to the start of the next. Small for a long poll, whose answers set the pace.
    interval: float
    #: Seconds that one poll may take: the sum of its own timeouts. A poll that takes longer has hung
    #: (`agent.sources.poller.PollDeadline`).
    longest: float
    #: Whether the cloud has withdrawn a notice that vanishes while the source is SEEING (Azure: yes. AWS: not documented).
    withdraws: bool

    def poll(self) -> Sighting:
        """Poll the source once, within `longest` seconds."""
        ...

    def close(self) -> None:
        """Close the connections. The polling thread calls this once."""
        ...


@runtime_checkable
class Promising(Protocol):
    """A source whose service announces how long before the end its notice comes (GCE's notice duration)."""

    @property
    def told(self) -> float | None:
        """Return the seconds in the service's newest announcement, None before the first. For the polling thread."""
        ...


@runtime_checkable
class Acknowledging(Protocol):
    """A source whose cloud accepts a go-ahead for an announced event (Azure's `StartRequests`)."""

    def acknowledge(self, notice_id: str) -> None:
        """Allow the cloud to begin with this notice's event now: everything that it can cost is saved.

        Any thread may call this. The polling thread sends the go-ahead, and only if the event concerns no other
        machine. The source ignores ids that are not its own.
        """
        ...
