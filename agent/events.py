"""Everything that happens to an agent, as values on one queue.

Threads (watchers, the socket server, the reaper) and signal handlers only put events there; one thread takes
them out and hands each to the pure machine in `core.machine`. Nothing else in the agent changes state.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from ..hooks.ipc.protocol import Message, Register
from ..providers.health import Health
from ..providers.notice import Notice

#: What is meant for the command and is passed on as it is. SIGTSTP and SIGCONT are Ctrl-Z and `fg` when the
#: keyboard is ours (see `supervisor`).
PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)


@dataclass(frozen=True, slots=True)
class NoticeSeen:
    """A source shows this notice (again, or for the first time)."""

    notice: Notice
    #: Seconds for which nobody had looked when the look began that showed it. None: not known, or not seen here.
    unseen: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NoticeGone:
    """A source that withdraws no longer shows it, while it sees."""

    id: str


@dataclass(frozen=True, slots=True)
class HealthChanged:
    source: str
    health: Health
    #: Monotonic seconds since when it is so.
    since: float


@dataclass(frozen=True, slots=True)
class SourceGone:
    """Nobody looks through this source any more: what was said of its sight holds no longer."""

    source: str


@dataclass(frozen=True, slots=True)
class WindowTold:
    """The cloud's own service says how many seconds before the end its notice comes. Its newest word counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A training process registered on the socket."""

    session: int
    #: As the kernel tells it (SO_PEERCRED), not as the peer claims.
    pid: int
    uid: int
    register: Register


@dataclass(frozen=True, slots=True)
class Heard:
    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """The session's socket closed, its process died, or it was dropped for `reason`."""

    session: int
    reason: str
    #: The process lives on without its socket: it may still be saving, and may come back. A second `Closed`
    #: follows when it dies.
    alive: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A person asked for a drill. The answers go to this connection."""

    session: int
    uid: int
    window: float
    preempt: bool


@dataclass(frozen=True, slots=True)
class StatusAsked:
    """A person asked what is guarded. An asker sees the sessions of its own uid, root sees all."""

    session: int
    uid: int


@dataclass(frozen=True, slots=True)
class Watching:
    """A `spotguard run` lets this agent poll: it is told every notice and health, now and as they change."""

    session: int
    #: It knows notices that are not terminal.
    severity: bool = True


@dataclass(frozen=True, slots=True)
class Launched:
    """The command runs. `pid` is its process group too."""

    pid: int


@dataclass(frozen=True, slots=True)
class NoticeHookEnded:
    """A command of `--on-notice` has ended."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What is left of the ended command, as a `Look` found it."""

    pid: int
    #: Whether others of its group are there.
    group: bool
    #: Whether anybody is left of the training processes that were asked for, and which those were.
    orphans: bool = False
    looked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Signalled:
    """`spotguard` itself got this signal."""

    signum: int
    #: The whole system is on its way to power-off or reboot (of a service's SIGTERM only).
    going_down: bool = False


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The guarded command is gone. `returncode` as `subprocess` has it: negative for a signal."""

    pid: int
    returncode: int


Event = (
    NoticeSeen
    | NoticeGone
    | HealthChanged
    | SourceGone
    | WindowTold
    | Opened
    | Heard
    | Closed
    | Asked
    | StatusAsked
    | Watching
    | Launched
    | NoticeHookEnded
    | GroupSeen
    | Signalled
    | CommandEnded
)
