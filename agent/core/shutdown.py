"""The end of a command that has a notice: who is asked to end, in which order, and how long each step has.

A running command: sessions that know how to are told to leave; the others get SIGTERM, those that did not leave too, and
SIGTERM once more; SIGKILL follows at the reserve. An ended command: a launcher that dies first leaves its workers, which hold their
GPUs, their memory and their run id, so the next start would be refused. Under a shell what a command leaves in the background
stays; here it stays if nobody asked the command to end and nothing is started after it, unless it trained below a
launcher that crashed.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal

from ...hooks.ipc import protocol
from ...providers.notice import Notice, NoticeKind
from ..actions import Look, Send, SignalOrphans, SignalSession
from .command import Command, CommandGroup
from .delivery import Delivery
from .preemption import EndState, Preemption
from .session import Session
from .state import Turn

#: Training had ended by itself: so long may the script take to end too, before it is told by the signal that the machine
#: goes. What it still does it has to bring to an end by its own handler, so not longer.
GOODBYE_GRACE = 2.0
#: Where no machine goes, so long may a command take to end after the commit. A worker that stands in a collective never runs
#: its handler of SIGTERM, and the other machines wait for the new start of this one.
PARTING = 15.0
#: What a killed agent left may take so long to save and to end: as long as the longest usual warning of a cloud (AWS).
ORPHANED = 120.0
#: After `Leave` a process ends by itself: Preempted is raised, `finally` blocks and exit handlers run (a tracker that
#: sends its last records takes seconds), CUDA shuts down. Then TERM. Docker gives as much (docker stop, `--time`).
LEAVE_GRACE = 10.0
#: Below a launcher that crashed: as torchrun gives its workers, who save one step when SIGTERM comes without a notice.
_CRASHED = 30.0
#: A look that has failed (no descriptor was free) is tried again after so long.
_UNANSWERED = 5.0


class Shutdown:
    """The supervised command's way to its end, with everything that belongs to it."""

    def __init__(self, turn: Turn, command: CommandGroup, delivery: Delivery) -> None:
        self._turn = turn
        self._command = command
        self._delivery = delivery

    def inherit(self, pid: int) -> None:
        """End what a killed agent left, as at a notice. The kernel tells an exit code to the parent alone, so no later agent can
        guard that command to its end."""
        self._command.current = Command(pid, since=self._turn.now)
        what = f"pid {pid} is" if pid else "processes are"
        notice = Notice(
            id=f"orphan-{self._turn.now:.6f}",
            kind=NoticeKind.ORPHAN,
            source="spotguard run",
            deadline=self._turn.now + ORPHANED,
            seen_at=self._turn.now,
            detail=f"{what} left of a spotguard run that was killed",
            window=ORPHANED,
        )
        self._delivery.start(Preemption(notice, self._turn.now, self._turn.policy.reserve))

    def advance(self, p: Preemption) -> None:
        if self._turn.now >= p.limit and p.end_state is not EndState.KILLED:
            self._out_of_time(p)
        elif not p.ending:
            self._begin_to_end(p)
        elif (
            p.term_at is not None and self._turn.now >= p.term_at and p.all_done
        ):  # also who came after `Leave`
            p.term_at = None
            p.end(EndState.TERMINATING, "told to leave, then TERM")
            self._turn.log("the command did not leave when told: SIGTERM")
            self._term(p)
        else:
            self._once_more(p)

    def _out_of_time(self, p: Preemption) -> None:
        p.then("killed at the reserve", EndState.KILLED)
        p.term_at = p.again_at = None
        p.end_all()
        self._turn.log(
            f"out of time: SIGKILL to the command, {p.deadline - self._turn.now:.1f} s left", logging.WARNING
        )
        self._command.kill_all()

    def _begin_to_end(self, p: Preemption) -> None:
        if p.all_done and not p.all_left:
            self._end(p)
        elif not p.all_left or self._turn.policy.signal is None:
            p.term_at = None
        elif p.term_at is None and not p.signalled:
            p.term_at = self._after_grace(p, GOODBYE_GRACE)
        elif p.term_at is not None and self._turn.now >= p.term_at:
            p.term_at = None
            self._delivery.signal(p, "training had ended by itself, and the command goes on")

    def _end(self, p: Preemption) -> None:
        """Everybody has answered: the command ends now, in the order that its kind of launcher needs."""
        pid = self._command.pid
        there = {number: part for number, part in p.parts.items() if part.open}
        spent = self._turn.now - p.notice.seen_at
        self._turn.log(
            f"everybody has answered {spent:.2f} s after the notice: ending{p.left_words(self._turn.now)}"
        )
        self.saves_are_over(p)
        # A client without a store is a function given to `on_notice`: it does not know how to leave.
        direct = all(part.session.pid == pid for part in there.values())
        if direct and any(part.session.store for part in there.values()):
            p.end(EndState.LEAVING, "left when told")
            p.term_at = self._after_grace(p, LEAVE_GRACE)
            for number, part in there.items():
                part.leave_sent = True
                self._turn.do(Send(number, protocol.Leave(part.told_as, self._turn.policy.exit_code)))
            return
        # Under a launcher a worker that leaves first is started again on the doomed machine (torchrun turns its
        # 75 into 1: seen). So the launcher goes first, and the workers stay parked until it takes them along.
        committed = any(part.committed for part in p.parts.values())
        p.end(EndState.TERMINATING, "TERM after the commit" if committed else "TERM")
        self._term(p)

    def saves_are_over(self, p: Preemption) -> None:
        """Where no machine goes it was the saves that had all the time they need, and not the end after them."""
        if p.stays:
            p.deadline = p.limit = min(p.limit, self._turn.now + PARTING)

    def _term(self, p: Preemption) -> None:
        p.again_at = (self._turn.now + p.limit) / 2
        self._command.signal(signal.SIGTERM)

    def _after_grace(self, p: Preemption, grace: float) -> float:
        return min(self._turn.now + grace, (self._turn.now + p.limit) / 2)

    # --- the command has ended ---

    def _once_more(self, p: Preemption) -> None:
        """TERM again to each training process that has answered and is there in spite of the first one.

        A handler of Python's runs on the main thread, between two of its instructions. A TERM that comes just before
        that thread begins to wait (in a read, for a lock), or that the kernel gives to another thread, is noted and
        wakes nobody (seen on a busy machine: the run waited for its reserve). Half-way to the reserve, because a handler
        that is at work must not be cut off in haste; to nobody who has said goodbye, whose exit handlers run; never
        to a launcher, nor to who has not registered: their one TERM may have begun something that a second one breaks.
        """
        if p.again_at is None or self._turn.now < p.again_at:
            return
        p.again_at = None
        deaf = [number for number, part in p.parts.items() if part.done and not (part.left or part.dead)]
        if deaf:
            self._turn.log(f"{len(deaf)} training process(es) still there after SIGTERM: SIGTERM again")
        for number in deaf:
            self._turn.do(SignalSession(number, signal.SIGTERM))

    def swept(self, command: Command) -> bool:
        """Whether no training process is left of a launcher that crashed. What else it has left stays, as under a shell."""
        if command.pid in command.trained or not (command.trained or self._command.left_alive()):
            return True
        return self.cleared(command, command.ended_at + _CRASHED, group=False)

    def cleared(self, command: Command, limit: float, *, group: bool = True) -> bool:
        """Whether nothing is left of the ended command; without its group, no training process of it. What is there is told
        to end, and killed at `limit`."""
        if self._turn.now >= limit:
            self._turn.log("killing what the command has left behind", logging.WARNING)
            if self._delivery.active is not None:
                self._delivery.active.then("what it had left behind was killed")
            self._command.kill_all(group=group)
            return True
        there, orphaned = self._command.left_alive(), self._command.orphaned(command)
        left = there or command.orphans_left or (group and command.group_left)
        if command.group_left is not None and not left and command.looked == orphaned:
            return True
        if left and command.group_left is not None and not command.parting:
            command.parting = True
            self._turn.log(
                f"the command is gone and has left processes behind: waiting {limit - self._turn.now:.1f} s for them",
                logging.WARNING,
            )
            if group and not command.told:
                self._command.signal(signal.SIGTERM)
            told = self._told_to_leave(command, there)
            self._part_from([s for s in there if s not in told], command.pid if group else 0, limit)
            command.term_at = (
                min(self._turn.now + LEAVE_GRACE, (self._turn.now + limit) / 2) if told else None
            )
        elif command.term_at is not None and self._turn.now >= command.term_at:
            command.term_at = None
            self._part_from(there, command.pid, limit)
        if command.orphans_left and (new := (command.looked & orphaned) - command.parted):
            command.parted |= new
            self._turn.do(SignalOrphans(signal.SIGTERM, new))
        if self._delivery.active is not None:
            self._once_more(self._delivery.active)
        if self._turn.now >= command.look_at or command.asked != orphaned:
            command.look_at, command.asked = self._turn.now + _UNANSWERED, orphaned
            self._turn.do(Look(orphaned))
        return False

    def _told_to_leave(self, command: Command, there: list[Session]) -> list[Session]:
        """Who ends in order, by its own exit code and with its exit handlers, now that it is told, or by itself. Only
        where nobody of the command's group is left: a launcher among them would start again what leaves before it."""
        p = self._delivery.active
        if p is None or p.rehearsal or command.group_left or self._turn.stopping:
            return []
        told = []
        for session in there:
            part = p.parts.get(session.number)
            if part is not None and part.open and not part.left and session.store:
                part.leave_sent = True
                self._turn.do(Send(session.number, protocol.Leave(part.told_as, self._turn.policy.exit_code)))
            if part is not None and (part.leave_sent or part.left):
                told.append(session)
        return told

    def _part_from(self, there: list[Session], group: int, limit: float) -> None:
        for session in there:
            self._turn.do(SignalSession(session.number, signal.SIGTERM, group))
        if self._delivery.active is not None and self._delivery.active.again_at is None:
            self._delivery.active.again_at = (self._turn.now + limit) / 2
