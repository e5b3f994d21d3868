"""The command that `spotguard run` supervises: its process group, the processes that outlive it, the wait for its next start.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..actions import KillGroup, SignalGroup, SignalOrphans, SignalSession
from ..events import CommandEnded, GroupSeen
from .failures.recovery import RecoveryDecision
from .preemption import NOBODY
from .session import Session, Sessions
from .state import Turn

#: A machine that is still there this many seconds after its deadline was not taken back.
OUTLIVED = 60.0
#: Exit code of `run` if it has killed the command for a failure. Schedulers take the command's own, 137, for a lack of memory.
ENDED_FOR_FAILURE = 1
#: Why `--attach` has attached nothing while no process tells of a framework.
UNREACHED = (
    "no Python that this run's environment reached has imported the Trainer of transformers or Lightning (env -i, sudo, another "
    "PYTHONPATH, and python -I, -E and -S keep it out)"
)
#: Seconds from the end of one check of the group's remaining processes to the next check.
LOOK = 0.2


@dataclass(slots=True)
class Command:
    """One start of the command, from `Launched` on."""

    pid: int
    #: Monotonic seconds of the launch.
    since: float = 0.0
    returncode: int | None = None
    ended_at: float = 0.0
    #: A training process of this start has registered.
    joined: bool = False
    #: The training process that went last.
    gone: Session | None = None
    #: Why `--attach` has attached nothing in it yet, as its newest process told.
    unattached: str = UNREACHED
    #: The log has said so.
    named_unattached: bool = False
    #: Pids of its training processes. Under a launcher each may lead a group of its own.
    trained: set[int] = field(default_factory=set)
    #: Set if the command got the signal of a notice that was then withdrawn. That signal caused any end before this time.
    #: Monotonic seconds.
    leave_by: float | None = None
    #: Its group got a signal that asks it to end.
    told: bool = False
    #: After its end: whether other processes of its group exist. None: the loop has not checked yet.
    group_left: bool | None = None
    #: After its end: whether any of the training processes that the loop checked is left.
    orphans_left: bool = False
    #: Training processes that the last check covered.
    looked: frozenset[int] = frozenset()
    #: Monotonic seconds of the next check.
    look_at: float = 0.0
    #: Training processes that the next check is asked to cover.
    asked: frozenset[int] = frozenset()
    #: Training processes whose own groups got SIGTERM.
    parted: frozenset[int] = frozenset()
    #: The agent has asked the processes that it left behind to end.
    parting: bool = False
    #: Monotonic seconds at which SIGTERM follows a `Leave` to the processes that it left behind.
    term_at: float | None = None
    #: What follows its failure, once that is decided.
    decision: RecoveryDecision | None = None
    #: Its end, once it has ended.
    end: CommandEnded | None = None
    #: The exit code of `run` instead of its own, because `run` has killed it.
    exit_code: int | None = None


class CommandGroup:
    """The running command, and every training process that belongs to it, wherever that process has gone."""

    def __init__(self, turn: Turn, sessions: Sessions) -> None:
        self._turn = turn
        self._sessions = sessions
        #: None before the first launch, and while nothing runs between two starts.
        self.current: Command | None = None

    @property
    def running(self) -> bool:
        """Whether a command was launched and has not ended."""
        return self.current is not None and self.current.returncode is None

    @property
    def pid(self) -> int:
        """The pid of the command; 0 if there is none."""
        return self.current.pid if self.current is not None else 0

    @property
    def trained(self) -> frozenset[int]:
        """The pids of the training processes of this start, also of those that have ended."""
        return frozenset(self.current.trained if self.current is not None else ())

    def joined(self, session: Session) -> None:
        """Note that a training process of this start has registered."""
        if self.current is not None and session.store:
            self.current.joined = True
            self.current.trained.add(session.pid)

    def parted(self, session: Session) -> None:
        """Note that the socket of a training process is closed."""
        if self.current is not None and session.pid in self.current.trained:
            self.current.gone = session

    @property
    def nobody(self) -> str:
        """Why no process answers a notice, if none is registered now."""
        if why := self.unattached:
            return f"nothing was attached: {why}"
        if self.current is None or self.current.gone is None:
            return NOBODY
        at = self.current.gone.position
        kept = (
            f"step {at.checkpoint_step} is" if at is not None and at.checkpoint_step >= 0 else "nothing was"
        )
        return f"training had ended, and {kept} committed"

    @property
    def unattached(self) -> str:
        """Why `--attach` has attached nothing in this start of the command; "" if it has, or is not asked to."""
        command = self.current
        waits = self._turn.policy.attach and command is not None and not command.joined
        return command.unattached if command is not None and waits else ""

    def ended(self, event: CommandEnded) -> None:
        """Note the exit code, once."""
        command = self.current
        if command is not None and command.pid == event.pid and command.returncode is None:
            command.returncode, command.ended_at = event.returncode, self._turn.now
            command.end = event

    def group_seen(self, event: GroupSeen) -> None:
        """Note which processes of the ended command the loop found."""
        command = self.current
        if command is not None and command.pid == event.pid:
            command.group_left, command.orphans_left = event.group, event.orphans
            command.looked, command.look_at = event.looked, self._turn.now + LOOK

    def signal(self, signum: int) -> None:
        """Ask the command's process group to end."""
        if self.current is not None:
            self.current.told = True
        self._turn.do(SignalGroup(signum))

    def left_alive(self) -> list[Session]:
        """Return the registered processes other than the command itself.

        A worker of torchrun has a session of its own, so no signal to the command's group reaches it.
        """
        return [session for session in self._sessions.every() if session.pid != self.pid]

    def orphaned(self, command: Command) -> frozenset[int]:
        """Return the groups of training processes that are gone, without the command itself."""
        there = {session.pid for session in self.left_alive()}
        return frozenset(command.trained - there - {command.pid})

    def end_for(self, decision: RecoveryDecision) -> None:
        """Kill everything that belongs to the running command, because of a failure after which nothing starts again here."""
        if self.current is not None:
            self.current.decision, self.current.exit_code = decision, ENDED_FOR_FAILURE
        self.kill_all()

    def kill_all(self, *, group: bool = True) -> None:
        """Send SIGKILL to everything that belongs to the command; without `group`, to its training processes only."""
        pid = self.pid
        if group:
            self._turn.do(KillGroup())
        for session in self.left_alive():
            self._turn.do(SignalSession(session.number, signal.SIGKILL, pid if group else 0))
        if self.current is not None and (groups := frozenset(self.current.trained - {pid})):
            self._turn.do(SignalOrphans(signal.SIGKILL, groups))


class Restart:
    """The wait between the command's end and its next start, or the exit of `spotguard run`."""

    def __init__(self) -> None:
        #: Monotonic seconds at which the wait is over; None: nothing waits.
        self.at: float | None = None
        #: Why the command starts again then. "": `--outlive` decides.
        self.reason = ""
        #: The class of the failure behind which it starts then; "" for another reason.
        self.failure = ""
        #: Ids of the notices that this wait outlasts.
        self._notices: set[str] = set()
        #: Seconds to wait after each of their deadlines.
        self._patience = OUTLIVED

    def wait(
        self, at: float, patience: float, *, notices: Iterable[str] = (), reason: str = "", failure: str = ""
    ) -> None:
        """Wait until `at`. A notice that comes meanwhile prolongs the wait to `patience` seconds after its deadline."""
        self.at, self.reason, self.failure = at, reason, failure
        self._notices, self._patience = set(notices), patience

    def prolong(self, notice_id: str, deadline: float) -> None:
        """Wait out this notice too. It came while the command did not run."""
        if self.at is not None:
            self.reason = ""
            self._notices.add(notice_id)
            self.at = max(self.at, deadline + self._patience)

    def withdrawn(self, notice_id: str, now: float) -> bool:
        """Remove a withdrawn notice from the wait. Return whether it was the last one, so that the wait is over."""
        if self.at is None or notice_id not in self._notices:
            return False
        self._notices.remove(notice_id)
        if self._notices:
            return False
        self.at = now
        return True

    def over(self) -> None:
        """End the wait."""
        self.at, self.reason, self.failure, self._notices = None, "", "", set()
