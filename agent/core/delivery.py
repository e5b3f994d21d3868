"""The first half of the machine: what a notice asks for, and who is told. How it ends is in `machine`.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from dataclasses import replace

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind, Severity
from ...providers.text import TEXT, clip
from ..actions import Announce, Publish, Send, SignalGroup, Tell
from ..events import Asked
from ..outcome import WITHDRAWN
from .hearing import Hearing
from .preemption import Preemption, one_end, same_notice

#: A hook that lost its socket tries once a second (`hooks.ipc.client.RECONNECT`).
RETURN = 2.0
#: Nobody knows whether a killed agent had training processes. SIGTERM costs one that is late all that it has not saved.
FOUND = 5.0


class Delivery(Hearing):
    """The notices that come, and the words about them."""

    # --- notices ---

    def _seen(self, said: Notice) -> None:
        """A source shows this. How severe it is decides whether anybody has to go."""
        p = self.pending
        if said.severity is Severity.ADVISORY:
            self._say(self.horizon.advise(said, self._now))
        elif said.severity is Severity.TERMINAL:
            self.horizon.gone(said.id)  # what was far off has begun (Azure: `Started`)
            self._begun(said)
            self._noticed(said)
        elif p is not None and not p.rehearsal and p.knows(said):
            self._noticed(self.horizon.terminal(said, self._now))  # it has become the notice in hand
        elif not self._had_its_end(said):
            self._say(self.horizon.expect(said, self._now))

    def _say(self, line: str) -> None:
        if line:
            self._log(line, logging.WARNING)

    def _look_ahead(self) -> None:
        """What was far off and is near now."""
        for notice in self.horizon.due(self._now):
            self._came_due.add(notice.id)
            self._noticed(notice)

    def _ask_for_a_checkpoint(self) -> None:
        """Beside training, where something far off or a mere warning wants one. It waits until a notice or a drill is over."""
        if self.pending is not None:
            return
        wish = self.horizon.wish(self._now, anybody=any(s.checkpoints for s in self.sessions.values()))
        if wish is not None:
            self._log(f"asking for a checkpoint beside training: {wish.reason}")
            for session in self.sessions.values():
                self._checkpoint(session, wish.reason, going=wish.going)

    def _begun(self, said: Notice) -> None:
        """What was told of its planned time, and outlived, begins now: that is a notice of its own, once."""
        if said.id in self._came_due:
            self._came_due.remove(said.id)
            known = self._settled.get(said.id)
            if known is not None and not same_notice(replace(known, id=""), said):
                del self._settled[said.id]

    def _had_its_end(self, notice: Notice) -> bool:
        return any(same_notice(notice, known) or one_end(notice, known) for known in self._settled.values())

    def _noticed(self, said: Notice) -> None:
        """A notice that ends the machine, or the command."""
        notice = self._as_trusted(said)
        if self._had_its_end(notice):
            return
        if notice.kind is NoticeKind.UNKNOWN:
            self._log(
                f"{notice.source} says what this spotguard does not know ({clip(notice.detail, TEXT)}): taken as the end "
                "of this machine",
                logging.ERROR,
            )
        p = self.pending
        if p is not None and p.rehearsal:
            self._rehearsed(p, "broken off: a real notice came")
            p = None
        if p is not None and p.published and not p.knows(notice):
            self._forget(p)
            p = None
        if self.policy.command and not self._running:
            self._noticed_too_late(notice, said)
        elif p is None:
            self._start(Preemption(notice, self._now, self.policy.reserve))
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

    def _another(self, p: Preemption, notice: Notice) -> None:
        if p.knows(notice):
            p.also_called(notice)
        else:
            taken_over = p.stays
            p.join(notice)
            if taken_over:
                p.take_over(notice, self._now)
            self._log(f"another notice: {notice.kind} from {notice.source}", logging.WARNING)
            self._announce(p, notice)
            for session in self.sessions.values():  # a drill of one user has become a notice for all
                if p.takes(session) and session.number not in p.parts:
                    self._do(Send(session.number, p.tell(session, self._now)))
        if p.bring_forward(notice, self._now):
            self._log(f"the deadline moved earlier: {p.deadline - self._now:.1f} s left", logging.WARNING)
            for number, part in p.parts.items():
                if part.open and not part.done:
                    self._do(Send(number, p.tell_again(part, self._now)))

    def _noticed_too_late(self, notice: Notice, said: Notice) -> None:
        """The command has ended already: nothing is there to be saved, and no relaunch before this one is over."""
        if self.pending is not None:
            self._another(self.pending, notice)
            return
        self._settled[notice.id] = notice
        if self.outlive_at is not None:
            self._again = ""
            self._outlived.add(notice.id)
            self.outlive_at = max(self.outlive_at, said.deadline + self._patience)
        p = Preemption(notice, self._now, self.policy.reserve)
        self._do(Publish(p.outcome("nothing was running", None, None)))

    def _start(self, p: Preemption) -> None:
        self.pending = p
        told = [s for s in self.sessions.values() if p.takes(s)]
        if self.policy.command and not p.rehearsal:
            # A command that somebody stopped (Ctrl-Z) can neither save nor obey a TERM.
            self._do(SignalGroup(signal.SIGCONT))
        for session in told:
            self._do(Send(session.number, p.tell(session, self._now)))
        # After the words to them: nothing may come before those.
        self._log(f"{self._first_words(p)}, telling {len(told)} training process(es)", logging.WARNING)
        if (missing := self._missing(p)) and not p.rehearsal:
            p.return_by = min(self._now + (FOUND if p.of_orphan else RETURN), (self._now + p.limit) / 2)
            self._log(f"{missing} without a socket: {p.return_by - self._now:.1f} s to come back")
        elif not told:
            self._signal(p, "nobody is registered")
        if not p.rehearsal and not p.stays and self._is_everybodys(p):
            self._announce(p, p.notice)

    def _first_words(self, p: Preemption) -> str:
        notice, left = p.notice, f"{p.left_at_first:.1f} s left"
        if p.of_orphan:
            return f"{notice.detail}: training there saves and ends before the command is started"
        if p.stays:
            return (
                f"another machine of this job was noticed: {notice.detail} from {notice.source}, {left} there"
            )
        # A window that is (nearly) over is tried all the same (`preemption.LAST_TRY`), but it is not said to be longer.
        if p.left_at_first < p.deadline - self._now:
            left += f", {p.deadline - self._now:.1f} s tried all the same"
        return f"{notice.kind} notice from {notice.source}: {left}, {p.reserve:.1f} s in reserve"

    def _is_everybodys(self, p: Preemption) -> bool:
        """Whether this concerns all that the agent serves: on a shared service, one user's drill does not."""
        return self.policy.command or p.uid is None

    def _announce(self, p: Preemption, notice: Notice) -> None:
        """To the operator's own command: after the words to those who save."""
        self._do(Announce(notice, p.deadline - self._now, p.limit))

    def _missing(self, p: Preemption) -> str:
        """How many live, had registered, and cannot be told now; "" for none."""
        pid = self.command.pid if self.command is not None else 0
        if p.of_orphan and all(part.session.pid != pid for part in p.parts.values()):
            return "its training processes are"  # as many as had registered with the agent before this one
        missing = sum(p.takes(s) and not s.left for s in self.lost.values())
        return f"{missing} more" if missing else ""

    def _signal(self, p: Preemption, why: str) -> None:
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

    def _await_return(self, p: Preemption) -> None:
        """Whoever lost its socket just before the notice is back, is gone, or has had its time."""
        if p.return_by is None or (self._missing(p) and self._now < p.return_by):
            return
        p.return_by = None
        if not p.parts and self._running:
            self._signal(p, "nobody is registered")

    def _gone(self, notice_id: str) -> None:
        if (far := self.horizon.gone(notice_id)) is not None:
            self._log(f"{far.kind} from {far.source} was withdrawn: it stands no longer", logging.WARNING)
        self._settled.pop(notice_id, None)  # shown again, it counts again
        self._came_due.discard(notice_id)
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
        self._release(p, WITHDRAWN)

    def _release(self, p: Preemption, ended: str) -> None:
        """Everybody who was not told to leave goes on training."""
        for number, part in p.parts.items():
            if part.open and not part.leave_sent:
                self._do(Send(number, protocol.Withdrawn(part.told_as)))
        if not p.published:
            self._do(Publish(p.outcome(ended, None, None)))
        self.pending = None

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
        p = Preemption(notice, self._now, self.policy.reserve, rehearsal=not event.preempt, uid=uid)
        p.asker = event.session
        self._start(p)

    def _no_drill(self, event: Asked) -> str:
        if self.pending is not None or self.outlive_at is not None or self._stopping:
            return "a notice is being handled now: a drill would disturb it"
        if any(event.uid in (0, s.uid) for s in self.sessions.values()):
            return ""
        if not self._running or self.policy.signal is None or self.sessions:
            return "no training process is registered here: nothing would be saved"
        if event.preempt:
            return ""
        name = signal.Signals(self.policy.signal).name
        return (
            f"no training process is registered here; if the command saves by itself at {name}, rehearse that with "
            "spotguard drill --preempt, which ends it"
        )

    def _rehearsed(self, p: Preemption, ended: str) -> None:
        for number, part in p.parts.items():
            if part.open:
                self._do(Send(number, protocol.Resume(p.id)))
        self._publish(p, ended, None, None)
        self.pending = None
