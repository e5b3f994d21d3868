"""The first half of the machine: who is told what, and what they answer. How it ends is in `emergency`.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass, replace

from ..hooks import protocol
from ..providers.notice import Notice, NoticeKind
from .actions import Action, Log, Publish, Send, SignalGroup, Tell
from .events import Asked, Closed, Heard, Opened
from .pending import Part, Pending, same_notice
from .roster import Session

#: A machine that is still there so long after its deadline was not taken.
OUTLIVED = 60.0
#: A hook that lost its socket tries once a second (`hooks.client.RECONNECT`).
RETURN = 2.0


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


@dataclass(slots=True)
class Command:
    pid: int
    returncode: int | None = None
    ended_at: float = 0.0
    #: It got the signal of a notice that was then withdrawn: an end before this instant is that signal's doing.
    leave_by: float | None = None
    #: Its group got a signal that asks it to end.
    told: bool = False
    #: After its end: whether others of its group are there (None: nobody has looked), and the next look.
    group_left: bool | None = None
    look_at: float = 0.0
    #: What it left behind was told to end.
    parting: bool = False


class Telling:
    """Sessions, the notice in hand, and the words between them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.sessions: dict[int, Session] = {}
        #: Training processes that live and have no socket: they may come back under another number.
        self.lost: dict[int, Session] = {}
        self.pending: Pending | None = None
        self.command: Command | None = None
        #: When the relaunch after a preemption is due (`--outlive`), and the notices it waits out.
        self.outlive_at: float | None = None
        self._outlived: set[str] = set()
        #: Notices that had their end: seeing them again changes nothing.
        self._settled: dict[str, Notice] = {}
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

    # --- notices ---

    def _noticed(self, said: Notice) -> None:
        notice = self._as_trusted(said)
        if any(same_notice(notice, known) for known in self._settled.values()):
            return
        p = self.pending
        if p is not None and p.rehearsal:
            self._rehearsed(p, "broken off: a real notice came")
            p = None
        if p is not None and p.published:
            self._forget(p)
            p = None
        if self.policy.command and not self._running:
            self._noticed_too_late(notice, said)
        elif p is None:
            self._start(Pending(notice, self._now, self.policy.reserve))
        else:
            self._another(p, notice)
        if self.pending is not None:
            self.pending.hear_cloud(said)

    def _as_trusted(self, notice: Notice) -> Notice:
        """With the window that the user counts on: shorter than the cloud's word, never longer."""
        window = self.policy.window
        if window is None or window >= notice.window or notice.kind is NoticeKind.SIGNAL:
            return notice
        return replace(notice, window=window, deadline=min(notice.deadline, notice.seen_at + window))

    def _another(self, p: Pending, notice: Notice) -> None:
        if not p.knows(notice):
            p.join(notice)
            self._log(f"another notice: {notice.kind} from {notice.source}", logging.WARNING)
            for session in self.sessions.values():  # a drill of one user has become a notice for all
                if p.takes(session) and session.number not in p.parts:
                    self._do(Send(session.number, p.tell(session, self._now)))
        if p.bring_forward(notice, self._now):
            self._log(f"the deadline moved earlier: {p.deadline - self._now:.1f} s left", logging.WARNING)
            for number, part in p.parts.items():
                if part.open and not part.done:
                    self._do(Send(number, p.preempt(self._now)))

    def _noticed_too_late(self, notice: Notice, said: Notice) -> None:
        """The command has ended already: nothing is there to be saved, and no relaunch before this one is over."""
        if self.pending is not None:
            self._another(self.pending, notice)
            return
        self._settled[notice.id] = notice
        if self.outlive_at is not None:
            self._outlived.add(notice.id)
            self.outlive_at = max(self.outlive_at, said.deadline + OUTLIVED)
        p = Pending(notice, self._now, self.policy.reserve)
        self._do(Publish(p.outcome("nothing was running", None, None)))

    def _start(self, p: Pending) -> None:
        self.pending = p
        told = [s for s in self.sessions.values() if p.takes(s)]
        # A window that is (nearly) over is tried all the same (`pending.LAST_TRY`), but it is not said to be longer.
        late = p.left_at_first < p.deadline - self._now
        left = f"{p.left_at_first:.1f} s left"
        left += f", {p.deadline - self._now:.1f} s tried all the same" if late else ""
        if self.policy.command and not p.rehearsal:
            # A command that somebody stopped (Ctrl-Z) can neither save nor obey a TERM.
            self._do(SignalGroup(signal.SIGCONT))
        for session in told:
            self._do(Send(session.number, p.tell(session, self._now)))
        # After the words to them: nothing may come before those.
        self._log(
            f"{p.notice.kind} notice from {p.notice.source}: {left}, "
            f"{p.reserve:.1f} s in reserve, telling {len(told)} training process(es)",
            logging.WARNING,
        )
        if (missing := self._missing(p)) and not p.rehearsal:
            p.return_by = min(self._now + RETURN, (self._now + p.limit) / 2)
            self._log(f"{len(missing)} more without a socket: {p.return_by - self._now:.1f} s to come back")
        elif not told:
            self._signal(p, "nobody is registered")

    def _missing(self, p: Pending) -> list[Session]:
        """Who lives, had registered, and cannot be told now."""
        return [s for s in self.lost.values() if p.takes(s) and not s.left]

    def _signal(self, p: Pending, why: str) -> None:
        """For a command that is not, or no more, guarded from inside: its own handler, and the rest of the window."""
        if not self.policy.command or self.policy.signal is None or p.signalled:
            return
        p.signalled = True
        name = signal.Signals(self.policy.signal).name
        self._log(f"{why}: {name} to the command, which has the rest of the window")
        self._signal_group(self.policy.signal)

    def _signal_group(self, signum: int) -> None:
        """Ask the command's group to end."""
        if self.command is not None:
            self.command.told = True
        self._do(SignalGroup(signum))

    def _await_return(self, p: Pending) -> None:
        """Whoever lost its socket just before the notice is back, is gone, or has had its time."""
        if p.return_by is None or (self._missing(p) and self._now < p.return_by):
            return
        p.return_by = None
        if not p.parts:
            self._signal(p, "nobody is registered")

    def _gone(self, notice_id: str) -> None:
        self._settled.pop(notice_id, None)  # shown again, it counts again
        if self.outlive_at is not None and notice_id in self._outlived:
            self._outlived.remove(notice_id)
            if not self._outlived:
                self._log("the notice was withdrawn after the command had ended")
                self.outlive_at = self._now
        p = self.pending
        if p is None or p.standing.pop(notice_id, None) is None or p.standing:
            return
        if p.ending or (self.policy.command and not self._running):
            p.withdrawn = True
            return
        self._log("the notice was withdrawn: training goes on", logging.WARNING)
        if p.signalled and self.command is not None:
            self.command.leave_by = p.limit
        self._release(p, "withdrawn")

    def _release(self, p: Pending, ended: str) -> None:
        """Everybody who was not told to leave goes on training."""
        for number, part in p.parts.items():
            if part.open and not part.leave_sent:
                self._do(Send(number, protocol.Withdrawn(p.id)))
        if not p.published:
            self._do(Publish(p.outcome(ended, None, None)))
        self.pending = None

    # --- sessions ---

    def _opened(self, event: Opened) -> None:
        session = Session.of(event.session, event.pid, event.uid, event.register, self._now)
        self.sessions[session.number] = session
        self.lost = {n: s for n, s in self.lost.items() if not s.same_client(session)}
        p = self.pending
        if p is None or p.rehearsal or not p.takes(session):
            return
        # It lost its socket and is back: the old connection's silence is no longer waited for.
        for number, part in list(p.parts.items()):
            if part.closed and not part.done and part.session.same_client(session):
                del p.parts[number]
        self._do(Send(session.number, p.tell(session, self._now)))

    def _heard(self, event: Heard) -> None:
        session, message, p = self.sessions.get(event.session), event.message, self.pending
        if session is None:
            return
        if isinstance(message, protocol.Committed) and message.step >= 0:  # below 0: it was saved elsewhere
            session.saved(message, self._now)
        if isinstance(message, protocol.Position):
            session.stands(message, self._now)
        elif isinstance(message, protocol.Bye):
            session.left = True
            if p is not None and (part := p.parts.get(event.session)) is not None:
                part.left = True
        elif isinstance(message, protocol.Told | protocol.Progress | protocol.Committed | protocol.Failed):
            part = p.parts.get(event.session) if p is not None and message.id in p.ids else None
            if p is not None and part is not None:
                phase = part.phase
                part.hear(message, self._now)
                news = not isinstance(message, protocol.Progress) or part.phase != phase
                self._report(p, part, message, news)

    def _report(self, p: Pending, part: Part, message: protocol.Message, news: bool) -> None:
        spent, left = self._now - p.notice.seen_at, p.deadline - self._now
        who = f"rank {part.session.rank} (pid {part.session.pid})"
        if isinstance(message, protocol.Progress):
            at = f" at step {message.step}" if message.step >= 0 else ""
            what, level = f"{who}: {part.phase}{at}", logging.INFO
        elif isinstance(message, protocol.Committed):
            what, level = f"{who}: committed step {message.step}", logging.INFO
        elif isinstance(message, protocol.Failed):
            what, level = f"{who}: will not commit: {part.failed}", logging.ERROR
        else:
            what, level = f"{who}: has the notice", logging.INFO
        if news:
            self._log(f"{what}; {spent:.2f} s after the notice, {left:.1f} s left", level)
        if p.asker is not None:
            body = {"phase": message.type, "pid": part.session.pid, "after": round(spent, 6), "text": what}
            self._do(Tell(p.asker, body, False))

    def _closed(self, event: Closed) -> None:
        p = self.pending
        part = p.parts.get(event.session) if p is not None else None
        if part is not None:
            part.closed = True
            part.dead = part.dead or not event.alive
        session = self.sessions.pop(event.session, None)
        if not event.alive:
            self.lost.pop(event.session, None)
        elif session is not None:
            self.lost[event.session] = session

    # --- drills ---

    def _asked(self, event: Asked) -> None:
        why = self._no_drill(event)
        if why:
            self._do(Tell(event.session, {"error": why}, True))
            return
        notice = Notice(
            # Unique for ever: a training process outlives an agent, and must not take this for an old drill.
            id=f"drill-{self._now:.6f}",
            kind=NoticeKind.DRILL,
            source="spotguard drill",
            deadline=self._now + event.window,
            seen_at=self._now,
            window=event.window,
        )
        uid = None if event.uid == 0 else event.uid
        p = Pending(notice, self._now, self.policy.reserve, rehearsal=not event.preempt, uid=uid)
        p.asker = event.session
        self._start(p)

    def _no_drill(self, event: Asked) -> str:
        if self.pending is not None or self.outlive_at is not None or self._stopping:
            return "a notice is being handled now: a drill would disturb it"
        if not any(event.uid in (0, s.uid) for s in self.sessions.values()):
            return "no training process is registered here: nothing would be saved"
        return ""

    def _rehearsed(self, p: Pending, ended: str) -> None:
        for number, part in p.parts.items():
            if part.open:
                self._do(Send(number, protocol.Resume(p.id)))
        self._publish(p, ended, None, None)
        self.pending = None

    def _forget(self, p: Pending) -> None:
        """This emergency had its end: its notices, seen again, change nothing."""
        self._settled |= p.standing
        self.pending = None

    def _publish(self, p: Pending, ended: str, returncode: int | None, code: int | None) -> None:
        outcome = p.outcome(ended, returncode, code)
        p.published = True
        self._do(Publish(outcome))
        if p.asker is not None:
            self._do(Tell(p.asker, {"outcome": outcome.summary()}, True))
