"""Everything the pure machine can ask for, as values: the loop carries them out, in order, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..hooks.ipc.protocol import Message
from ..providers.notice import Notice
from .outcome import Outcome


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to one training process."""

    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class SignalGroup:
    """Send this signal to the command's whole process group."""

    signum: int


@dataclass(frozen=True, slots=True)
class KillGroup:
    """SIGKILL to the command's whole process group."""


@dataclass(frozen=True, slots=True)
class SignalSession:
    """Send this signal to one training process, unless it is still in `group`, which gets its signals as a whole."""

    session: int
    signum: int
    #: 0: wherever it is.
    group: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Look what is left of the ended command's group, and of these training processes that are gone. The answer is a
    `GroupSeen`, in its turn behind what has happened meanwhile."""

    orphaned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SignalOrphans:
    """Send this signal to whoever is left in these groups and sessions, which had training processes for leaders."""

    signum: int
    groups: frozenset[int]


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing runs for a while: the keyboard is ours until the next `Launch`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the command (again). The loop answers with `Launched`."""

    #: Machines that are gone since the last start: (their names and addresses, where to meet instead), in order.
    moves: tuple[tuple[frozenset[str], str], ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is over: spotguard exits with this code."""

    code: int
    #: Monotonic seconds until which it may wait for the command of `--on-notice`.
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Announce:
    """A notice ends this machine: tell the operator's command, which has until then (monotonic seconds)."""

    notice: Notice
    left: float
    until: float


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Everything that this notice can cost is committed: its cloud may begin (`--acknowledge`)."""

    notice_id: str


@dataclass(frozen=True, slots=True)
class Publish:
    """One notice has come to its end: write the record and the line (law 13)."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Log:
    #: As in `logging`.
    level: int
    text: str


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
    | Rest
    | Launch
    | Finish
    | Announce
    | Acknowledge
    | Publish
    | Log
    | Tell
)
