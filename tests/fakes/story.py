"""A story told to the pure machine: events in order, time that passes as its `next_wake` asks, actions kept."""

from __future__ import annotations

from typing import TypeVar

from spotguard.agent.actions import (
    Action,
    Finish,
    KillGroup,
    Launch,
    Look,
    LookAtProcess,
    Publish,
    Send,
    SignalGroup,
    SignalSession,
    Tell,
)
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import MachineState, Policy
from spotguard.agent.events import (
    Asked,
    Closed,
    CommandEnded,
    Event,
    GroupSeen,
    Heard,
    Launched,
    NoticeGone,
    NoticeSeen,
    Opened,
    ProcessSeen,
    Signalled,
)
from spotguard.agent.outcome import Outcome
from spotguard.hooks.ipc.protocol import (
    Committed,
    Delivered,
    Failed,
    Message,
    PeerCancelled,
    PeerPreempted,
    Register,
)
from spotguard.providers.notice import Notice, NoticeKind, Severity

START = 1000.0
T = TypeVar("T")


class Story:
    """Times are seconds since the story began. The command's pid is 100, then 101 …"""

    def __init__(self, *, age: float = 60.0, orphan: int | None = None, **policy: object) -> None:
        self.machine = Machine(Policy(**policy))  # type: ignore[arg-type]
        self.now = START
        self.log: list[tuple[float, Action]] = []
        self.pid = 99 if orphan is None else orphan
        self._sessions = 0
        #: Whether others of the command's group stay when it ends.
        self.group_left = False
        #: Whether training processes that are gone have left anybody behind.
        self.orphans_left = False
        #: Whether a training process that sends nothing may run. Else it is stopped.
        self.may_run = False
        #: Seconds that a look at what is left takes.
        self.look_takes = 0.0
        self.now -= age  # the command has been running for so long when the story begins
        self._take(self.machine.begin(self.now, orphan))
        self.now += age

    # --- what happens ---

    def on(self, event: Event | None) -> list[Action]:
        """This happens now; the actions that it leads to."""
        mark = len(self.log)
        self._take(self.machine.handle(event, self.now))
        return [action for _, action in self.log[mark:]]

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            self.log.append((self.now - START, action))
            if isinstance(action, Launch):
                self.pid += 1
                self._take(self.machine.handle(Launched(self.pid), self.now))
            elif isinstance(action, Look):
                self.now += self.look_takes
                orphans = self.orphans_left and bool(action.orphaned)
                seen = GroupSeen(self.pid, self.group_left, orphans, action.orphaned)
                self._take(self.machine.handle(seen, self.now))
            elif isinstance(action, LookAtProcess):
                self._take(self.machine.handle(ProcessSeen(action.session, self.may_run), self.now))

    def until(self, seconds: float) -> list[Action]:
        """Time passes, with every wake-up that the machine asks for on the way."""
        mark = len(self.log)
        end = START + seconds
        while (wake := self.machine.next_wake) is not None and wake <= end:
            assert wake > self.now, "a wake-up in the past would spin"
            self.now = wake
            self._take(self.machine.handle(None, self.now))
        self.now = max(self.now, end)
        return [action for _, action in self.log[mark:]]

    def pause(self) -> float:
        """The pause before a start passes; return its seconds."""
        began = self.now
        while self.machine.state is MachineState.WAITING:
            assert self.machine.next_wake is not None
            self.until(self.machine.next_wake - START)
        return self.now - began

    def notice(
        self,
        left: float = 120.0,
        *,
        id: str = "n1",
        kind: NoticeKind = NoticeKind.TERMINATE,
        window: float = 120.0,
        severity: Severity = Severity.TERMINAL,
        source: str = "aws spot/instance-action",
    ) -> list[Action]:
        deadline = self.now + left
        return self.on(NoticeSeen(Notice(id, kind, source, deadline, self.now, severity, window=window)))

    def gone(self, id: str = "n1") -> list[Action]:
        return self.on(NoticeGone(id))

    def opens(
        self,
        pid: int = 100,
        *,
        uid: int = 1000,
        run: str = "run",
        store: str = "file:///s",
        checkpoints: bool = True,
        rank: int = 0,
        world: int = 1,
        proof: str = "",
        attached: str = "",
    ) -> int:
        self._sessions += 1
        said = Register(
            pid, run, "train.py", store, rank, world, checkpoints=checkpoints, proof=proof, attached=attached
        )
        self.on(Opened(self._sessions, pid, uid, said))
        return self._sessions

    def says(self, session: int, message: Message) -> list[Action]:
        return self.on(Heard(session, message))

    def called(
        self,
        session: int,
        id: str = "x",
        *,
        left: float = 118.0,
        drill: bool = False,
        gone: str = "",
        meet: str = "",
    ) -> list[Action]:
        """This rank has heard that another machine of its job was noticed."""
        kind, source = "drill" if drill else "terminate", "aws spot/instance-action"
        return self.says(
            session, PeerPreempted(id, kind, source, left, self.now, "rack 7", drill, gone, meet)
        )

    def uncalled(self, session: int, id: str = "x") -> list[Action]:
        return self.says(session, PeerCancelled(id))

    def told(self, session: int) -> list[Action]:
        return self.says(session, Delivered(self.id, self.now))

    def commits(self, session: int, step: int = 7) -> list[Action]:
        return self.says(session, Committed(self.id, step, 1000, 0.5, "file:///s/x", self.now))

    def fails(self, session: int, reason: str = "the store is full") -> list[Action]:
        return self.says(session, Failed(self.id, reason))

    def closes(self, session: int, *, alive: bool = False) -> list[Action]:
        return self.on(Closed(session, "closed", alive))

    def ends(self, returncode: int) -> list[Action]:
        """The command ends, and its sessions' sockets with it."""
        for number, session in list(self.machine.sessions.items()):
            if session.pid == self.pid:
                self.closes(number)
        return self.on(CommandEnded(self.pid, returncode))

    def signal(self, signum: int) -> list[Action]:
        return self.on(Signalled(signum))

    def asks(
        self, *, uid: int = 1000, window: float = 30.0, preempt: bool = False, asker: int = 900
    ) -> list[Action]:
        return self.on(Asked(asker, uid, window, preempt))

    # --- what came of it ---

    @property
    def id(self) -> str:
        assert self.machine.preemption is not None
        return self.machine.preemption.id

    def all(self, kind: type[T]) -> list[T]:
        return [action for _, action in self.log if isinstance(action, kind)]

    def times(self, kind: type[Action]) -> list[float]:
        return [at for at, action in self.log if isinstance(action, kind)]

    def sent(self, kind: type[T]) -> list[tuple[int, T]]:
        return [(a.session, a.message) for a in self.all(Send) if isinstance(a.message, kind)]

    @property
    def signals(self) -> list[int]:
        return [action.signum for action in self.all(SignalGroup)]

    @property
    def signalled_sessions(self) -> list[tuple[int, int]]:
        return [(action.session, action.signum) for action in self.all(SignalSession)]

    @property
    def killed(self) -> bool:
        return bool(self.all(KillGroup))

    @property
    def code(self) -> int | None:
        codes = [action.code for action in self.all(Finish)]
        assert len(codes) <= 1
        return codes[0] if codes else None

    @property
    def outcomes(self) -> list[Outcome]:
        return [action.outcome for action in self.all(Publish)]

    @property
    def tells(self) -> list[Tell]:
        return self.all(Tell)
