"""The middle of the machine: what a command leaves behind when it ends, and when that has to end too.

A launcher that dies first leaves its workers: they hold their GPUs, their memory and their run id, and the next
start is refused. Under a shell what a command leaves in the background stays; here it stays where nobody asked
the command to end and nothing is started after it, unless it trained below a launcher that crashed.

Pure, as all of it: events and the time come in, actions go out.
"""

from __future__ import annotations

import logging
import signal

from ...hooks.ipc import protocol
from ..actions import KillGroup, Look, Send, SignalOrphans, SignalSession
from ..events import GroupSeen
from .hearing import Command
from .peers import Peers
from .preemption import Preemption
from .session import Session

#: After `Leave` a process ends by itself: Preempted is raised, `finally` blocks and exit handlers run (a tracker that
#: sends its last records takes seconds), CUDA shuts down. Then TERM. Docker gives as much (docker stop, `--time`).
LEAVE_GRACE = 10.0
#: Below a launcher that crashed: as torchrun gives its workers, who save one step when SIGTERM comes without a notice.
_CRASHED = 30.0
#: Between two looks at what is left of the group, from the end of one on.
_LOOK = 0.2
#: A look that has failed (no descriptor was free) is tried again after so long.
_UNANSWERED = 5.0


class Shutdown(Peers):
    """The command's end as a whole: its group, and the training processes that have left it."""

    def _left_alive(self) -> list[Session]:
        """Registered processes that are not the command itself: a worker of torchrun has a session of its own, and
        no signal to the command's group reaches it."""
        pid = self.command.pid if self.command is not None else 0
        return [s for s in (*self.sessions.values(), *self.lost.values()) if s.pid != pid]

    def _orphaned(self, command: Command) -> frozenset[int]:
        """The groups of training processes that are gone, and are not the command itself."""
        there = {session.pid for session in self._left_alive()}
        return frozenset(command.trained - there - {command.pid})

    def _kill_all(self, *, group: bool = True) -> None:
        """SIGKILL to whatever belongs to the command, wherever it has gone; without its group, to what trained alone."""
        pid = self.command.pid if self.command is not None else 0
        if group:
            self._do(KillGroup())
        for session in self._left_alive():
            self._do(SignalSession(session.number, signal.SIGKILL, pid if group else 0))
        if self.command is not None and (groups := frozenset(self.command.trained - {pid})):
            self._do(SignalOrphans(signal.SIGKILL, groups))

    def _once_more(self, p: Preemption) -> None:
        """TERM again to each training process that has answered and is there in spite of the first one.

        A handler of Python's runs on the main thread, between two of its instructions. A TERM that comes just before
        that thread begins to wait (in a read, for a lock), or that the kernel gives to another thread, is noted and
        wakes nobody (seen on a busy machine: the run waited for its reserve). Half-way to the reserve, because a handler
        that is at work must not be cut off in haste; to nobody who has said goodbye, whose exit handlers run; never
        to a launcher, nor to who has not registered: their one TERM may have begun something that a second one breaks.
        """
        if p.again_at is None or self._now < p.again_at:
            return
        p.again_at = None
        deaf = [number for number, part in p.parts.items() if part.done and not (part.left or part.dead)]
        if deaf:
            self._log(f"{len(deaf)} training process(es) still there after SIGTERM: SIGTERM again")
        for number in deaf:
            self._do(SignalSession(number, signal.SIGTERM))

    def _group_seen(self, event: GroupSeen) -> None:
        command = self.command
        if command is not None and command.pid == event.pid:
            command.group_left, command.orphans_left = event.group, event.orphans
            command.looked, command.look_at = event.looked, self._now + _LOOK

    def _swept(self, command: Command) -> bool:
        """Whether no training process is left of a launcher that crashed. What else it has left stays, as under a shell."""
        if command.pid in command.trained or not (command.trained or self._left_alive()):
            return True
        return self._cleared(command, command.ended_at + _CRASHED, group=False)

    def _cleared(self, command: Command, limit: float, *, group: bool = True) -> bool:
        """Whether nothing is left of the ended command; without its group, no training process of it. What is there is told
        to end, and killed at `limit`."""
        if self._now >= limit:
            self._log("killing what the command has left behind", logging.WARNING)
            if self.pending is not None:
                self.pending.then("what it had left behind was killed")
            self._kill_all(group=group)
            return True
        there, orphaned = self._left_alive(), self._orphaned(command)
        left = there or command.orphans_left or (group and command.group_left)
        if command.group_left is not None and not left and command.looked == orphaned:
            return True
        if left and command.group_left is not None and not command.parting:
            command.parting = True
            self._log(
                f"the command is gone and has left processes behind: waiting {limit - self._now:.1f} s for them",
                logging.WARNING,
            )
            if group and not command.told:
                self._signal_group(signal.SIGTERM)
            told = self._told_to_leave(command, there)
            self._part_from([s for s in there if s not in told], command.pid if group else 0, limit)
            command.term_at = min(self._now + LEAVE_GRACE, (self._now + limit) / 2) if told else None
        elif command.term_at is not None and self._now >= command.term_at:
            command.term_at = None
            self._part_from(there, command.pid, limit)
        if command.orphans_left and (new := (command.looked & orphaned) - command.parted):
            command.parted |= new
            self._do(SignalOrphans(signal.SIGTERM, new))
        if self.pending is not None:
            self._once_more(self.pending)
        if self._now >= command.look_at or command.asked != orphaned:
            command.look_at, command.asked = self._now + _UNANSWERED, orphaned
            self._do(Look(orphaned))
        return False

    def _told_to_leave(self, command: Command, there: list[Session]) -> list[Session]:
        """Who ends in order, by its own exit code and with its exit handlers, now that it is told, or by itself. Only
        where nobody of the command's group is left: a launcher among them would start again what leaves before it."""
        p = self.pending
        if p is None or p.rehearsal or command.group_left or self._stopping:
            return []
        told = []
        for session in there:
            part = p.parts.get(session.number)
            if part is not None and part.open and not part.left and session.store:
                part.leave_sent = True
                self._do(Send(session.number, protocol.Leave(part.told_as, self.policy.exit_code)))
            if part is not None and (part.leave_sent or part.left):
                told.append(session)
        return told

    def _part_from(self, there: list[Session], group: int, limit: float) -> None:
        for session in there:
            self._do(SignalSession(session.number, signal.SIGTERM, group))
        if self.pending is not None and self.pending.again_at is None:
            self.pending.again_at = (self._now + limit) / 2
