"""The beginning of the machine: who is there, what they answer, and what it keeps in mind.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass, field

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ...providers.text import NAME, clip
from ..actions import Acknowledge, Action, Log, Publish, Send, Tell
from ..events import Closed, Heard, Opened, Watching
from ..outcome import as_level
from .launcher_notices import LauncherNotices
from .preemption import Participant, Preemption
from .session import Session
from .upcoming import Upcoming

#: A machine that is still there so long after its deadline was not taken.
OUTLIVED = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the options say about endings."""

    #: True: guards one command. False: a service, which ends nothing.
    command: bool = True
    #: Seconds of warning to count on, where less than the notice says (`--window`).
    window: float | None = None
    reserve: float | None = None
    #: For a command of which nobody registered.
    signal: int | None = signal.SIGTERM
    max_restarts: int = 0
    outlive: bool = False
    exit_code: int = 75
    #: Let the cloud begin once everything is committed, where it waits for somebody to say so.
    acknowledge: bool = False


@dataclass(slots=True)
class Command:
    pid: int
    #: When it was launched.
    since: float = 0.0
    returncode: int | None = None
    ended_at: float = 0.0
    #: A training process of it has registered: it got as far as that.
    joined: bool = False
    #: The training processes that it has had. Below a launcher each may lead a group of its own.
    trained: set[int] = field(default_factory=set)
    #: It got the signal of a notice that was then withdrawn: an end before this instant is that signal's doing.
    leave_by: float | None = None
    #: Its group got a signal that asks it to end.
    told: bool = False
    #: After its end: whether others of its group are there (None: nobody has looked), and whether anybody is left of the training
    #: processes that were looked for; the next look, and whom the last one asks for; whose leavings were told to end.
    group_left: bool | None = None
    orphans_left: bool = False
    looked: frozenset[int] = frozenset()
    look_at: float = 0.0
    asked: frozenset[int] = frozenset()
    parted: frozenset[int] = frozenset()
    #: What it left behind was told to end; TERM follows then for who was told in words.
    parting: bool = False
    term_at: float | None = None


class Hearing:
    """The machine's memory, and the answers of the training processes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.sessions: dict[int, Session] = {}
        #: Training processes that live and have no socket: they may come back under another number.
        self.lost: dict[int, Session] = {}
        #: Runs that let us poll for them: what they guard is not known here.
        self.watching: set[int] = set()
        self.pending: Preemption | None = None
        #: What its launcher asks of the command's ranks, and not this agent.
        self.launchers = LauncherNotices()
        #: What training goes on under: deadlines that are far off, and warnings.
        self.horizon = Upcoming(policy.window)
        self.command: Command | None = None
        #: When what follows a preemption is due, where that is waited for: a relaunch (`--outlive`, or `_again`), or the
        #: exit of a run that began in vain. The notices that are waited out, and for how long after their deadlines.
        self.outlive_at: float | None = None
        self._outlived: set[str] = set()
        self._patience = OUTLIVED
        #: Why the command is started again when `outlive_at` comes, where that is no matter of `--outlive`.
        self._again = ""
        #: Until when a command that does not get as far as to register is started again without charge.
        self._rejoin_until = 0.0
        #: Notices that had their end: seeing them again changes nothing.
        self._settled: dict[str, Notice] = {}
        #: Notices that were far off, and of which nobody has said yet that they have begun.
        self._came_due: set[str] = set()
        #: A second SIGTERM, or a SIGINT, has come: nothing new begins.
        self._stopping = False
        self._now = 0.0
        self._actions: list[Action] = []

    @property
    def _running(self) -> bool:
        return self.command is not None and self.command.returncode is None

    def _do(self, *actions: Action) -> None:
        self._actions += actions

    def _log(self, text: str, level: int = logging.INFO) -> None:
        self._actions.append(Log(level, text))

    # --- sessions ---

    def _opened(self, event: Opened) -> None:
        session = Session.of(event.session, event.pid, event.uid, event.register, self._now)
        self.sessions[session.number] = session
        if self.command is not None and session.store:
            self.command.joined = True
            self.command.trained.add(session.pid)
        self.lost = {n: s for n, s in self.lost.items() if not s.same_client(session)}
        p = self.pending
        if p is None and (reason := self.horizon.near(self._now)):
            self._checkpoint(session, reason, going=True)
        if p is None or p.rehearsal or not p.takes(session):
            return
        # It lost its socket and is back: the old connection's silence is no longer waited for.
        for number, part in list(p.parts.items()):
            if part.closed and not part.done and part.session.same_client(session):
                del p.parts[number]
        self._do(Send(session.number, p.tell(session, self._now)))

    def _checkpoint(self, session: Session, reason: str, *, going: bool) -> None:
        if session.checkpoints and not session.left:
            self._do(Send(session.number, protocol.CheckpointNow(reason, going)))

    def _heard(self, event: Heard) -> None:
        session, message, p = self.sessions.get(event.session), event.message, self.pending
        if session is None:
            return
        if isinstance(message, protocol.Committed) and message.step >= 0:  # below 0: it was saved elsewhere
            session.saved(message, self._now)
        if isinstance(message, protocol.Position):
            if session.step < 0 <= message.step:  # it has restored: who starts a job again looks for this
                self._log(
                    f"rank {session.rank} (pid {session.pid}): training stands at step {message.step} "
                    f"of run {session.run_id} in {session.store}"
                )
            session.stands(message, self._now)
        elif isinstance(message, protocol.Bye):
            session.left = True
            if p is not None and (part := p.parts.get(event.session)) is not None:
                part.left = True
        elif isinstance(
            message, protocol.Delivered | protocol.Progress | protocol.Committed | protocol.Failed
        ):
            if isinstance(message, protocol.Delivered) and message.kind == protocol.LAUNCHER:
                self._launcher_told(session, message)
            if p is None or message.id not in p.ids:
                p = self.launchers.of(session, message.id)
            part = p.parts.get(event.session) if p is not None else None
            if p is not None and part is not None:
                phase = part.phase
                part.hear(message, self._now)
                news = not isinstance(message, protocol.Progress) or part.phase != phase
                self._report(p, part, message, news)

    def _launcher_told(self, session: Session, said: protocol.Delivered) -> None:
        if (p := self.launchers.told(session, said, self._now)) is not None:
            left = f"{p.left_at_first:.1f} s left for the save of the other ranks"
            self._log(f"{p.notice.kind} notice from {p.notice.source}: {left}", logging.WARNING)

    def _report(self, p: Preemption, part: Participant, message: protocol.Message, news: bool) -> None:
        spent = self._now - p.notice.seen_at
        who = f"rank {part.session.rank} (pid {part.session.pid})"
        if isinstance(message, protocol.Progress):
            at = f" at step {message.step}" if message.step >= 0 else ""
            what, level = f"{who}: {part.phase}{at}", logging.INFO
        elif isinstance(message, protocol.Committed):
            least = as_level(clip(message.level, NAME), ", ")
            own = message.step < 0  # `on_notice`: its return says so, and no more
            did = "saved by a function of its own" if own else f"committed step {message.step}{least}"
            what, level = f"{who}: {did}", logging.INFO
        elif isinstance(message, protocol.Failed):
            what, level = f"{who}: will not commit: {part.failed}", logging.ERROR
        else:
            what, level = f"{who}: has the notice", logging.INFO
        if news:
            self._log(f"{what}; {spent:.2f} s after the notice{p.left_words(self._now)}", level)
        if p.asker is not None:
            body = {"phase": message.type, "pid": part.session.pid, "after": round(spent, 6), "text": what}
            self._do(Tell(p.asker, body, False))

    def _watched(self, event: Watching) -> None:
        self.watching.add(event.session)

    def _closed(self, event: Closed) -> None:
        self.watching.discard(event.session)
        p = self.pending
        part = p.parts.get(event.session) if p is not None else None
        if part is not None:
            part.closed = True
            part.dead = part.dead or not event.alive
        self.launchers.closed(event.session, alive=event.alive)
        session = self.sessions.pop(event.session, None)
        if not event.alive:
            self.lost.pop(event.session, None)
        elif session is not None:
            self.lost[event.session] = session

    def _forget(self, p: Preemption) -> None:
        """This emergency had its end: its notices, seen again, change nothing."""
        # A drill's id never comes again, and a service that lives for years plays many.
        self._settled |= {id: n for id, n in p.standing.items() if n.kind is not NoticeKind.DRILL}
        self.pending = None

    def _is_all_there_is(self, p: Preemption) -> bool:
        """Whether whoever took part is everybody whose work the machine's end can cost, as far as can be known."""
        return not (p.rehearsal or self.watching or self.lost.keys() - p.parts.keys())

    def _publish(self, p: Preemption, ended: str, returncode: int | None, code: int | None) -> None:
        outcome = p.outcome(ended, returncode, code)
        p.published = True
        self._do(Publish(outcome))
        if self.policy.acknowledge and outcome.committed is not None and self._is_all_there_is(p):
            self._do(*(Acknowledge(id) for id in p.standing))
        if p.asker is not None:
            self._do(Tell(p.asker, {"outcome": outcome.summary()}, True))
