"""The delivery of notices: whether a notice ends training, asks for a checkpoint or waits, and which sessions get it.

Pure, like all of `core`: events and the time come in, actions go out. `shutdown` (for a command) and `service` decide how a
notice ends.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Collection

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind, Severity
from ...providers.text import TEXT, clip
from ..actions import Acknowledge, Announce, Publish, Send, SignalGroup, Tell
from ..events import Asked
from ..outcome import BROKEN_OFF, WITHDRAWN
from .command import CommandGroup, Restart
from .notices import NoticeTracker
from .preemption import Preemption
from .session import Session, Sessions
from .state import Turn

#: Seconds for a session that lost its socket to come back: it tries once a second (`hooks.ipc.client.RECONNECT`).
RETURN = 2.0
#: Why a process that sends nothing, and is not stopped, does not save.
HELD = "no Python runs there; native code seems to hold the interpreter's lock"
#: Seconds for training processes of a killed agent to come back. The agent does not know whether there are any, and SIGTERM
#: costs one that comes late everything that it has not saved.
FOUND = 5.0


class Delivery:
    """The owner of the active notice. It delivers the notice, its deadline and its withdrawal to the sessions."""

    def __init__(
        self, turn: Turn, sessions: Sessions, notices: NoticeTracker, command: CommandGroup, restart: Restart
    ) -> None:
        self._turn = turn
        self._sessions = sessions
        self._notices = notices
        self._command = command
        self._restart = restart
        #: The notice that is being answered; None if there is none.
        self.active: Preemption | None = None

    # --- notices ---

    def seen(self, notice: Notice) -> None:
        """Handle a notice that a source shows. Its severity decides whether training has to end."""
        p, now, upcoming = self.active, self._turn.now, self._notices.upcoming
        if notice.severity is Severity.ADVISORY:
            self._warn(upcoming.advise(notice, now))
        elif notice.severity is Severity.TERMINAL:
            self._notices.begun(notice)
            self.noticed(notice)
        elif p is not None and not p.rehearsal and p.knows(notice):
            self.noticed(upcoming.terminal(notice, now))  # it has become the active notice
        elif not self._notices.had_its_end(notice):
            self._warn(upcoming.expect(notice, now))

    def _warn(self, line: str) -> None:
        if line:
            self._turn.log(line, logging.WARNING)

    def look_ahead(self) -> None:
        """Answer the notices that were far off and are near now."""
        for notice in self._notices.due(self._turn.now):
            self.noticed(notice)

    def ask_for_checkpoint(self) -> None:
        """Ask for a checkpoint beside training if a far-off deadline or a warning calls for one, and no notice is active."""
        if self.active is not None and not self.active.stall:
            return
        open_sessions = self._sessions.open.values()
        wish = self._notices.upcoming.wish(self._turn.now, anybody=any(s.checkpoints for s in open_sessions))
        if wish is not None:
            self._turn.log(f"requesting a background checkpoint: {wish.reason}")
            for session in open_sessions:
                self.checkpoint(session, wish.reason, going=wish.going)

    def checkpoint(self, session: Session, reason: str, *, going: bool) -> None:
        """Ask one session for a checkpoint beside training."""
        if session.checkpoints and not session.left:
            self._turn.do(Send(session.number, protocol.CheckpointNow(reason, going)))

    def noticed(self, shown: Notice) -> None:
        """Answer a notice that ends the machine, or the command."""
        notice = self._notices.as_trusted(shown)
        if self._notices.had_its_end(notice):
            return
        if notice.kind is NoticeKind.UNKNOWN:
            self._turn.log(
                f"{notice.source} has a value that this spotguard does not know ({clip(notice.detail, TEXT)}): assumed to be the end "
                "of this machine",
                logging.ERROR,
            )
        p = self.active
        broken = p if p is not None and p.rehearsal else None
        if broken is not None:
            self.publish(broken, f"{BROKEN_OFF}: a real notice came", None, None)
            self.active = p = None
        if p is not None and p.published and not p.knows(notice):
            self.forget(p)
            p = None
        if self._turn.policy.command and not self._command.running:
            self._noticed_too_late(notice, shown)
        elif p is None:
            self.start(Preemption(notice, self._turn.now, self._turn.policy.reserve))
        else:
            self._another(p, notice)
        if self.active is not None:
            self.active.hear_cloud(shown)
        if broken is not None:
            # Behind the notice: a process that is let go first may obey a SIGTERM that it held.
            self._let_go(broken)

    def _another(self, p: Preemption, notice: Notice) -> None:
        if p.knows(notice):
            p.also_called(notice)
        else:
            taken_over = p.stays
            p.join(notice)
            if taken_over:
                p.take_over(notice, self._turn.now)
            self._turn.log(f"another notice: {notice.kind} from {notice.source}", logging.WARNING)
            self._announce(p, notice)
            self.deliver_to_newcomers(p)  # a drill of one user has become a notice for all
        if p.bring_forward(notice, self._turn.now):
            left = p.deadline - self._turn.now
            self._turn.log(f"the deadline moved earlier: {left:.1f} s left", logging.WARNING)
            for number, part in p.parts.items():
                if part.open and not part.done:
                    self._turn.do(Send(number, p.tell_again(part, self._turn.now)))

    def deliver_to_newcomers(self, p: Preemption) -> None:
        """Deliver the notice to each session that it concerns and that does not have it."""
        for session in self._sessions.open.values():
            if p.takes(session) and session.number not in p.parts:
                self.deliver(p, session)

    def deliver(self, p: Preemption, session: Session) -> None:
        """Deliver the notice to one session."""
        self._turn.do(Send(session.number, p.tell(session, self._turn.now)))

    def _noticed_too_late(self, notice: Notice, shown: Notice) -> None:
        """Handle a notice that comes after the command's end. Nothing is left to save; no start precedes the notice's end."""
        if self.active is not None:
            self._another(self.active, notice)
            return
        self._notices.settle([notice])
        self._restart.prolong(notice.id, shown.deadline)
        p = Preemption(notice, self._turn.now, self._turn.policy.reserve)
        self._turn.do(Publish(p.outcome("nothing was running", None, None)))

    def start(self, p: Preemption, held: Collection[int] = ()) -> None:
        """Make this the active notice, and deliver it.

        Args:
            held: numbers of the sessions in which no Python runs. They cannot answer, and nobody waits for them.
        """
        self.active = p
        now, command = self._turn.now, self._turn.policy.command
        concerned = [session for session in self._sessions.open.values() if p.takes(session)]
        if command and not p.rehearsal:
            # A command that a person stopped (Ctrl-Z) can neither save nor obey a TERM.
            self._turn.do(SignalGroup(signal.SIGCONT))
        for session in concerned:
            if session.number in held:
                p.give_up(session, HELD, now)
            else:
                self.deliver(p, session)
        # After the delivery, because nothing may delay it.
        level = logging.INFO if p.rehearsal and not p.stall else logging.WARNING
        told = sum(part.delivered_as != "" for part in p.parts.values())
        self._turn.log(f"{self._first_line(p)}, notifying {told} training process(es)", level)
        if (missing := self._missing(p)) and not p.rehearsal:
            p.return_by = min(now + (FOUND if p.of_orphan else RETURN), (now + p.limit) / 2)
            self._turn.log(f"{missing} without a socket: {p.return_by - now:.1f} s to come back")
        elif not concerned:
            self.signal(p, "nobody is registered")
        if not p.rehearsal and not p.stays and self.is_everybodys(p):
            self._announce(p, p.notice)

    def _first_line(self, p: Preemption) -> str:
        notice, left = p.notice, f"{p.left_at_first:.1f} s left"
        if p.stall:
            return f"training stands still: {notice.detail}"
        if p.of_orphan:
            return f"{notice.detail}: training there saves and ends before the command is started"
        if notice.kind is NoticeKind.RESTART:
            return "ending the training that stands still"
        if p.stays:
            return (
                f"another machine of this job was noticed: {notice.detail} from {notice.source}, {left} there"
            )
        # Sessions still try to save in a window that is (nearly) over (`preemption.LAST_TRY`), but the log gives its true length.
        until_deadline = p.deadline - self._turn.now
        if p.left_at_first < until_deadline:
            left += f", {until_deadline:.1f} s tried all the same"
        return f"{notice.kind} notice from {notice.source}: {left}, {p.reserve:.1f} s in reserve"

    def is_everybodys(self, p: Preemption) -> bool:
        """Return whether the notice concerns all sessions of the agent. On a shared service, one user's drill does not."""
        return self._turn.policy.command or p.uid is None

    def _announce(self, p: Preemption, notice: Notice) -> None:
        """Start the operator's `--on-notice` command, after the sessions have the notice."""
        self._turn.do(Announce(notice, p.deadline - self._turn.now, p.limit))

    def _missing(self, p: Preemption) -> str:
        """Return, for the log, the number of living processes that had registered and have no socket now; "" for none."""
        if p.of_orphan and all(part.session.pid != self._command.pid for part in p.parts.values()):
            return "its training processes are"  # their number is unknown: they registered with the agent before this one
        missing = sum(p.takes(session) and not session.left for session in self._sessions.lost.values())
        return f"{missing} more" if missing else ""

    def signal(self, p: Preemption, why: str) -> None:
        """Send the signal of `--signal` to a command without a registered process. The command has the rest of the window."""
        signum = self._turn.policy.signal
        if not self._turn.policy.command or signum is None or p.signalled:
            return
        p.signalled = True
        name = signal.Signals(signum).name
        self._turn.log(f"{why}: {name} to the command, which has the rest of the window")
        self._command.signal(signum)

    def await_return(self, p: Preemption) -> None:
        """Go on without sessions that lost their socket just before the notice, once all are back, gone, or late."""
        if p.return_by is None or (self._missing(p) and self._turn.now < p.return_by):
            return
        p.return_by = None
        if not p.parts and self._command.running:
            self.signal(p, "nobody is registered")

    # --- the end of a notice ---

    def withdrawn(self, notice_id: str) -> None:
        """Handle the withdrawal of a notice: no source shows it any more."""
        if (far := self._notices.withdrawn(notice_id)) is not None:
            self._turn.log(f"{far.kind} from {far.source} was withdrawn", logging.WARNING)
        if self._restart.withdrawn(notice_id, self._turn.now):
            self._turn.log("the notice was withdrawn after the command had ended")
        p = self.active
        if p is None or p.standing.pop(notice_id, None) is None or p.standing:
            return
        if p.ending or (self._turn.policy.command and not self._command.running):
            p.withdrawn = True
            return
        self._turn.log("the notice was withdrawn: training continues", logging.WARNING)
        if p.signalled and self._command.current is not None:
            self._command.current.leave_by = p.limit
        self.release(p, WITHDRAWN)

    def release(self, p: Preemption, ended: str) -> None:
        """Let every session that was not told to leave go on training."""
        for number, part in p.parts.items():
            if part.open and not part.leave_sent:
                self._turn.do(Send(number, protocol.Withdrawn(part.delivered_as)))
        if not p.published:
            self._turn.do(Publish(p.outcome(ended, None, None, self._command.nobody)))
        self.active = None

    def forget(self, p: Preemption) -> None:
        """Forget the active notice, which had its end. If a source shows it again, nothing changes."""
        self._notices.settle(p.standing.values())
        self.active = None

    def publish(self, p: Preemption, ended: str, returncode: int | None, code: int | None) -> None:
        """Write the record of this notice, and let its cloud begin if everything is committed."""
        outcome = p.outcome(ended, returncode, code, self._command.nobody)
        p.published = True
        self._turn.do(Publish(outcome))
        if self._turn.policy.acknowledge and outcome.committed is not None and self._are_all_known(p):
            self._turn.do(*(Acknowledge(id) for id in p.standing))
        if p.asker is not None:
            self._turn.do(Tell(p.asker, {"outcome": outcome.summary()}, True))

    def _are_all_known(self, p: Preemption) -> bool:
        """Return whether every process that would lose work at the machine's end takes part, as far as the agent can know."""
        return not (p.rehearsal or self._sessions.watching or self._sessions.lost.keys() - p.parts.keys())

    # --- drills ---

    def asked(self, event: Asked) -> None:
        """Start a drill that a person asks for, or report why there can be none. The save of a stall gives way."""
        if self.active is not None and self.active.stall:
            self.rehearsed(self.active, f"{BROKEN_OFF}: a drill was asked for")
        if why := self._no_drill(event):
            self._turn.do(Tell(event.session, {"error": why}, True))
            return
        now = self._turn.now
        notice = Notice(
            # Unique for ever: a training process may outlive an agent, and must not mistake this drill for an old one.
            id=f"drill-{now:.6f}-{event.session}",
            kind=NoticeKind.DRILL,
            source="spotguard drill",
            deadline=now + event.window,
            seen_at=now,
            window=event.window,
        )
        uid = None if event.uid == 0 else event.uid
        p = Preemption(notice, now, self._turn.policy.reserve, rehearsal=not event.preempt, uid=uid)
        p.asker = event.session
        self.start(p)

    def _no_drill(self, event: Asked) -> str:
        """Return why no drill is possible now; "" if one is."""
        signum, sessions = self._turn.policy.signal, self._sessions.open
        if self.active is not None or self._restart.at is not None or self._turn.stopping:
            return "a notice is being handled now: a drill would disturb it"
        if any(event.uid in (0, session.uid) for session in sessions.values()):
            return ""
        if why := self._command.unattached:
            return f"--attach has attached nothing, and nothing would be saved: {why} [SG107]"
        if not self._command.running or signum is None or sessions:
            return "no training process is registered here: nothing would be saved [SG107]"
        if event.preempt:
            return ""
        name = signal.Signals(signum).name
        return (
            f"no training process is registered here; if the command saves by itself at {name}, rehearse that with "
            "spotguard drill --preempt, which ends it [SG107]"
        )

    def rehearsed(self, p: Preemption, ended: str) -> None:
        """End a drill: every session goes on training."""
        self._let_go(p)
        self.publish(p, ended, None, None)
        self.active = None

    def _let_go(self, p: Preemption) -> None:
        for number, part in p.parts.items():
            if part.open and part.delivered_as:
                self._turn.do(Send(number, protocol.Resume(p.id)))

    def advance_rehearsal(self, p: Preemption) -> None:
        """End a drill that every participant has answered, or whose time is over."""
        ended = self._turn.policy.after_stall if p.stall else "training continues"
        if p.all_done:
            self.rehearsed(p, ended)
        elif self._turn.now >= p.limit:
            self.rehearsed(p, f"out of time; {ended}")
