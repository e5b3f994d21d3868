"""The machine's way to the end of a command that still runs: who is told, how, and how long each step has.

Leave to who knows how to; TERM to the others, and to who did not leave, and once more; SIGKILL at the reserve.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ..actions import Send
from .hearing import Command
from .preemption import Preemption
from .shutdown import LEAVE_GRACE, Shutdown

#: Training had ended by itself: so long may the script take to end too, before it is told by the signal that the machine
#: goes. What it still does it has to bring to an end by its own handler, so not longer.
GOODBYE_GRACE = 2.0
#: Where no machine goes, so long may a command take to end after the commit. A worker that stands in a collective never runs
#: its handler of SIGTERM, and the other machines wait for the new start of this one.
PARTING = 15.0
#: What a killed agent left may take so long to save and to end: as long as the longest usual warning of a cloud (AWS).
ORPHANED = 120.0


class Ending(Shutdown):
    """A running command with a notice, from the first answer to SIGKILL."""

    def _inherit(self, pid: int) -> None:
        """End what a killed agent left, as at a notice. The kernel tells an exit code to the parent alone, so no later agent can
        guard that command to its end."""
        self.command = Command(pid, since=self._now)
        what = f"pid {pid} is" if pid else "processes are"
        notice = Notice(
            id=f"orphan-{self._now:.6f}",
            kind=NoticeKind.ORPHAN,
            source="spotguard run",
            deadline=self._now + ORPHANED,
            seen_at=self._now,
            detail=f"{what} left of a spotguard run that was killed",
            window=ORPHANED,
        )
        self._start(Preemption(notice, self._now, self.policy.reserve))

    def _towards_the_end(self, p: Preemption) -> None:
        if self._now >= p.limit and not p.killed:
            self._out_of_time(p)
        elif not p.ending:
            self._begin_to_end(p)
        elif p.term_at is not None and self._now >= p.term_at and p.all_done:  # also who came after `Leave`
            p.term_at = None
            p.ending = "told to leave, then TERM"
            self._log("the command did not leave when told: SIGTERM")
            self._term(p)
        else:
            self._once_more(p)

    def _out_of_time(self, p: Preemption) -> None:
        p.killed = True
        p.then("killed at the reserve")
        p.end_all()
        self._log(
            f"out of time: SIGKILL to the command, {p.deadline - self._now:.1f} s left", logging.WARNING
        )
        self._kill_all()

    def _begin_to_end(self, p: Preemption) -> None:
        if p.all_done and not p.all_left:
            self._end(p)
        elif not p.all_left or self.policy.signal is None:
            p.term_at = None
        elif p.term_at is None and not p.signalled:
            p.term_at = self._after_grace(p, GOODBYE_GRACE)
        elif p.term_at is not None and self._now >= p.term_at:
            p.term_at = None
            self._signal(p, "training had ended by itself, and the command goes on")

    def _end(self, p: Preemption) -> None:
        """Everybody has answered: the command ends now, in the order that its kind of launcher needs."""
        pid = self.command.pid if self.command is not None else 0
        there = {number: part for number, part in p.parts.items() if part.open}
        spent = self._now - p.notice.seen_at
        self._log(f"everybody has answered {spent:.2f} s after the notice: ending{p.left_words(self._now)}")
        self._saves_are_over(p)
        # A client without a store is a function given to `on_notice`: it does not know how to leave.
        direct = all(part.session.pid == pid for part in there.values())
        if direct and any(part.session.store for part in there.values()):
            p.ending = "left when told"
            p.term_at = self._after_grace(p, LEAVE_GRACE)
            for number, part in there.items():
                part.leave_sent = True
                self._do(Send(number, protocol.Leave(part.told_as, self.policy.exit_code)))
            return
        # Under a launcher a worker that leaves first is started again on the doomed machine (torchrun turns its
        # 75 into 1: seen). So the launcher goes first, and the workers stay parked until it takes them along.
        p.ending = "TERM after the commit" if any(part.committed for part in p.parts.values()) else "TERM"
        self._term(p)

    def _saves_are_over(self, p: Preemption) -> None:
        """Where no machine goes it was the saves that had all the time they need, and not the end after them."""
        if p.stays:
            p.deadline = p.limit = min(p.limit, self._now + PARTING)

    def _term(self, p: Preemption) -> None:
        p.again_at = (self._now + p.limit) / 2
        self._signal_group(signal.SIGTERM)

    def _after_grace(self, p: Preemption, grace: float) -> float:
        return min(self._now + grace, (self._now + p.limit) / 2)
