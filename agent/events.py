"""Events: everything that happens to an agent, as values on one queue.

Pollers, the socket server, the reaper and the signal handlers only put events on the queue. The loop's thread takes
them out and passes each one to the pure machine in `core.machine`. Nothing else in the agent changes state.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Any

from ..hooks.ipc.protocol import Message, Register
from ..providers.health import Health
from ..providers.notice import Notice

#: Signals that the agent passes on to the command unchanged. SIGTSTP and SIGCONT are Ctrl-Z and `fg` while the agent
#: holds the terminal (see `supervisor`).
PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)


@dataclass(frozen=True, slots=True)
class NoticeSeen:
    """A source shows this notice, for the first time or again."""

    notice: Notice
    #: Seconds between the last poll that saw and the start of the poll that showed the notice. None: not known, or not
    #: seen by this agent.
    unseen: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NoticeGone:
    """A source that withdraws notices sees, and no longer shows this one."""

    id: str


@dataclass(frozen=True, slots=True)
class HealthChanged:
    source: str
    health: Health
    #: Monotonic seconds at which the source began, or ceased, to see.
    since: float


@dataclass(frozen=True, slots=True)
class SourceGone:
    """No poller polls this source any more: its last reported health no longer holds."""

    source: str


@dataclass(frozen=True, slots=True)
class WindowTold:
    """The cloud's own service reports how many seconds before the end its notice comes. The newest report counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A training process registered on the socket."""

    session: int
    #: From the kernel (SO_PEERCRED), not from the peer.
    pid: int
    #: From the kernel, as `pid`.
    uid: int
    register: Register


@dataclass(frozen=True, slots=True)
class Heard:
    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """The session's socket closed, its process died, or the server dropped the session for `reason`."""

    session: int
    reason: str
    #: The process lives on without its socket: it may still be saving, and may connect again. A second `Closed`
    #: follows when the process dies.
    alive: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A person requested a drill. The answers go to this connection."""

    session: int
    uid: int
    window: float
    preempt: bool


@dataclass(frozen=True, slots=True)
class StatusAsked:
    """A person requested the status. A user sees the sessions of their own uid; root sees all."""

    session: int
    uid: int


@dataclass(frozen=True, slots=True)
class Watching:
    """A `spotguard run` leaves polling to this agent, which sends that run every notice and health, now and at each change."""

    session: int


@dataclass(frozen=True, slots=True)
class Launched:
    """The command runs. `pid` is its process group too."""

    pid: int


@dataclass(frozen=True, slots=True)
class NoticeHookEnded:
    """A command of `--on-notice` has ended."""


@dataclass(frozen=True, slots=True)
class HelperReported:
    """The helper of alerts reports which incidents last, and what it reads of this machine."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HelperEnded:
    """The helper of alerts has ended."""

    pid: int
    #: As in `subprocess`: negative for a signal.
    returncode: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A verification has ended: the answer to a `Verify`."""

    number: int
    #: "sound", "damaged", "partial" (an object is missing), or "unknown".
    status: str
    step: int
    #: The checkpoint's name in the store; "" if it is not known.
    checkpoint: str = ""
    #: The damage, or why nothing was found out.
    detail: str = ""
    #: The keys of the damaged objects (`text.key_list`).
    objects: str = ""

    def with_status(self, status: str) -> Verified:
        return replace(self, status=status)


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """Another machine of a job is heard, for the first time or again; or it is silent; or its agent has ended."""

    #: The user and the run of each job that has ranks there.
    runs: frozenset[Any]
    name: str
    #: Monotonic seconds of its last heartbeat, if it is silent now.
    silent_since: float | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A training process that sends nothing: the answer to a `LookAtProcess`."""

    session: int
    #: Whether it may run: it lives, and is neither stopped nor frozen.
    runs: bool


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The processes left of the ended command: the answer to a `Look`."""

    pid: int
    #: Whether other processes of its group live.
    group: bool
    #: Whether processes live that the requested training processes left behind.
    orphans: bool = False
    #: The pids of those training processes.
    looked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Signalled:
    """`spotguard` itself got this signal."""

    signum: int
    #: The whole system is on its way to power-off or reboot. Only set for a service's SIGTERM.
    going_down: bool = False
    #: No process of the command's group handles it, or a training process does not, so it was not passed on.
    unhandled: bool = False


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The guarded command has ended."""

    pid: int
    #: As in `subprocess`: negative for a signal.
    returncode: int
    #: How many processes of this cgroup the kernel has killed for memory meanwhile, and the cgroup's limit in bytes, if any were.
    memory_kills: int = 0
    memory_limit: int = 0
    #: Pids of the processes that the kernel's log names as killed for memory meanwhile.
    killed_for_memory: frozenset[int] = frozenset()


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
    | HelperReported
    | HelperEnded
    | Verified
    | MachineSeen
    | ProcessSeen
    | GroupSeen
    | Signalled
    | CommandEnded
)
