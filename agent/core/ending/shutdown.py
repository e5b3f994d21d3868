"""The end of a command that has a notice: which processes the agent asks to end, in which order, and the time for each step.

**A running command.** The agent sends `Leave` to the sessions that know how to leave. The others get SIGTERM, and so do those
that did not leave. SIGTERM follows once more, and SIGKILL at the reserve.

**An ended command.** A launcher that dies first leaves its workers behind. They hold their GPUs, their memory and their run id,
so the next start would be refused. Background processes that a command leaves behind stay, as under a shell, on two conditions:
the agent did not ask the command to end, and nothing is started after it. Processes that trained under a launcher that crashed
are ended in every case.

Pure, like all of `core`: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence

from ....hooks.ipc import protocol
from ....providers.notice import Notice, NoticeKind
from ...actions import Look, Send, SignalOrphans, SignalSession
from ..command import OUTLIVED, Command, CommandGroup
from ..delivery import Delivery
from ..preemption import EndState, Preemption
from ..session import Participant, Session, Sessions
from ..state import Turn
from .sigterm import sigterm_notice

#: Seconds for a script to end after its training has ended by itself, before the agent's signal announces the machine's end.
#: Not longer: the script's own handler needs time to finish the work that is left.
GOODBYE_GRACE = 2.0
#: Seconds for a command to end after the commit, if no machine goes. A worker that stands in a collective never runs its handler
#: of SIGTERM, and the other machines wait for the new start of this one.
PARTING = 15.0
#: Seconds for the processes that a killed agent left to save and end: as long as the longest usual warning of a cloud (AWS).
ORPHANED = 120.0
#: Seconds from `Leave` to TERM. After `Leave` a process ends by itself: Preempted is raised, `finally` blocks and exit handlers
#: run (a tracker that sends its last records takes seconds), CUDA shuts down. Docker gives as much (docker stop, `--time`).
LEAVE_GRACE = 10.0
#: Seconds for the workers of a launcher that crashed. torchrun gives its workers as much; they save one step if SIGTERM comes
#: without a notice.
_CRASHED = 30.0
#: Seconds after which a failed check (no descriptor was free) is repeated.
_UNANSWERED = 5.0


class Shutdown:
    """The end of the supervised command, and of all processes that belong to it."""

    def __init__(self, turn: Turn, command: CommandGroup, delivery: Delivery) -> None:
        self._turn = turn
        self._command = command
        self._delivery = delivery

    def inherit(self, pid: int) -> None:
        """End the processes that a killed agent left, as at a notice.

        The kernel reports an exit code to the parent only, so no later agent can guard that command to its end.
        """
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
        # `all_done` also covers sessions that came after `Leave`.
        elif p.term_at is not None and self._turn.now >= p.term_at and p.all_done:
            p.term_at = None
            p.end(EndState.TERMINATING, "asked to leave, then TERM")
            # If no machine goes, a command that takes its time is none the worse for it.
            late = logging.DEBUG if p.stays else logging.INFO
            self._turn.log("the command did not leave when asked: SIGTERM", late)
            self._term(p)
        else:
            self._once_more(p)

    def _out_of_time(self, p: Preemption) -> None:
        p.then("killed at the reserve", EndState.KILLED)
        p.term_at = p.again_at = None
        p.end_all()
        self._turn.log(
            f"out of time: SIGKILL to the command, {p.deadline - self._turn.now:.1f} s left [SG112]",
            logging.WARNING,
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
            self._delivery.signal(p, "training had ended by itself, and the command continues")

    def _end(self, p: Preemption) -> None:
        """End the command now that every participant has answered, in the order that its kind of launcher needs."""
        pid = self._command.pid
        there = {number: part for number, part in p.parts.items() if part.open}
        spent = self._turn.now - p.notice.seen_at
        self._turn.log(
            f"every training process has answered {spent:.2f} s after the notice: ending the command{p.left_words(self._turn.now)}"
        )
        self.saves_are_over(p)
        # A client without a store is a function given to `on_notice`: it does not know how to leave.
        direct = all(part.session.pid == pid for part in there.values())
        if direct and any(part.session.store for part in there.values()):
            p.end(EndState.LEAVING, "left when asked")
            p.term_at = self._after_grace(p, LEAVE_GRACE)
            for number, part in there.items():
                part.leave_sent = True
                self._turn.do(Send(number, protocol.Leave(part.delivered_as, self._turn.policy.exit_code)))
            return
        # A launcher restarts a worker that leaves first, on the departing machine (torchrun turns its 75 into 1: seen). So the
        # launcher goes first, and the workers stay parked until the launcher ends them.
        committed = any(part.committed for part in p.parts.values())
        p.end(EndState.TERMINATING, "TERM after the commit" if committed else "TERM")
        self._term(p)

    def saves_are_over(self, p: Preemption) -> None:
        """Limit the time for the command's end, if no machine goes. Only the saves had all the time that they need."""
        if p.stays:
            p.deadline = p.limit = min(p.limit, self._turn.now + PARTING)

    def _term(self, p: Preemption) -> None:
        p.again_at = (self._turn.now + p.limit) / 2
        self._command.signal(signal.SIGTERM)

    def _after_grace(self, p: Preemption, grace: float) -> float:
        return min(self._turn.now + grace, (self._turn.now + p.limit) / 2)

    # --- the command has ended ---

    def _once_more(self, p: Preemption) -> None:
        """Send TERM again to each training process that has answered and still exists after the first TERM.

        Python runs a signal handler on the main thread, between two of its instructions. A TERM may come just before that thread
        begins to wait (in a read, for a lock), or the kernel may give it to another thread. Then Python notes the signal, and no
        thread wakes (seen on a busy machine: the run waited for its reserve).

        The second TERM comes half-way to the reserve, so that it does not cut off a working handler early. A process that has
        sent `Bye` gets none, because its exit handlers run. A launcher and unregistered processes never get one: their first TERM
        may have begun something that a second TERM breaks.
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
        """Return whether no training process is left of a launcher that crashed. Its other processes stay, as under a shell."""
        if command.pid in command.trained or not (command.trained or self._command.left_alive()):
            return True
        return self.cleared(command, command.ended_at + _CRASHED, group=False)

    def cleared(self, command: Command, limit: float, *, group: bool = True) -> bool:
        """Ask the remaining processes of the ended command to end; kill them at `limit`.

        Args:
            command: the ended command.
            limit: monotonic seconds.
            group: include its whole process group; else only its training processes.

        Returns:
            Whether no process is left.
        """
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
            leaving = self._told_to_leave(command, there)
            self._part_from([s for s in there if s not in leaving], command.pid if group else 0, limit)
            command.term_at = (
                min(self._turn.now + LEAVE_GRACE, (self._turn.now + limit) / 2) if leaving else None
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
        """Send `Leave` to the remaining sessions, and return those that end in order: by `Leave`, or by themselves.

        These end with their own exit code and run their exit handlers. If any process of the command's group is left, send
        nothing: it may be a launcher, which would restart a worker that leaves before the launcher does.
        """
        p = self._delivery.active
        if p is None or p.rehearsal or command.group_left or self._turn.stopping:
            return []
        leaving = []
        for session in there:
            part = p.parts.get(session.number)
            if part is not None and part.open and not part.left and session.store:
                part.leave_sent = True
                self._turn.do(
                    Send(session.number, protocol.Leave(part.delivered_as, self._turn.policy.exit_code))
                )
            if part is not None and (part.leave_sent or part.left):
                leaving.append(session)
        return leaving

    def _part_from(self, there: list[Session], group: int, limit: float) -> None:
        for session in there:
            self._turn.do(SignalSession(session.number, signal.SIGTERM, group))
        if self._delivery.active is not None and self._delivery.active.again_at is None:
            self._delivery.active.again_at = (self._turn.now + limit) / 2


class Service:
    """The service's part of a notice: it lets finished groups of ranks leave, and decides when the agent itself may end."""

    def __init__(self, turn: Turn, sessions: Sessions, delivery: Delivery) -> None:
        self._turn = turn
        self._sessions = sessions
        self._delivery = delivery
        #: The agent was asked to end, and ends when no session saves any more.
        self._ending = False

    def signalled(self, signum: int, *, going_down: bool) -> bool:
        """Return whether the agent ends now.

        A SIGTERM ends a service at once, so that systemd can start it anew. It waits while a session saves. If the whole machine
        goes down, SIGTERM is a notice to every session. A second SIGTERM, or a SIGINT, ends it in any case.
        """
        first = signum == signal.SIGTERM and not self._ending
        self._ending = True
        if (
            first and going_down and self._sessions.open
        ):  # a drill, or another machine's notice, is a smaller thing
            self._delivery.noticed(sigterm_notice(self._turn))
        if not (first and self._somebody_saves()):
            return True
        self._turn.log(
            "ending when all who save have come to their end; a second SIGTERM ends this agent at once"
        )
        return False

    @property
    def over(self) -> bool:
        """Whether the agent was asked to end and no session saves any more."""
        return self._ending and not self._somebody_saves()

    def _somebody_saves(self) -> bool:
        p = self._delivery.active
        if p is None or p.published:
            return False
        return any(part.open and not part.done for part in p.parts.values())

    def stop(self) -> None:
        """Publish the outcome of the active notice, because the agent ends."""
        p = self._delivery.active
        if p is not None and not p.published:
            self._delivery.publish(p, "the agent was stopped", None, None)

    def advance(self, p: Preemption) -> None:
        """Let each group leave that is done, publish at the deadline, and forget a notice that the machine has outlived."""
        now = self._turn.now
        for group in p.groups():
            if p.return_by is None and all(part.done for part in group):
                self._dismiss(group)
        if not p.published and (p.all_done or now >= p.deadline):
            ended = "all processes were asked to leave" if p.all_done else "the deadline came"
            self._delivery.publish(p, ended, None, None)
            if p.drill or p.stays:  # no machine goes: a session that registers later must not get this notice
                self._delivery.forget(p)
        elif p.published and now >= p.machine_deadline + OUTLIVED:
            self._turn.log("this machine has outlived its notice: training may continue", logging.WARNING)
            self._delivery.forget(p)
            self._delivery.release(p, "outlived")

    def _dismiss(self, group: Sequence[Participant]) -> None:
        for part in group:
            if part.open and not part.leave_sent:
                part.leave_sent = True
                leave = protocol.Leave(part.delivered_as, self._turn.policy.exit_code)
                self._turn.do(Send(part.session.number, leave))
