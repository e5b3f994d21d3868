"""The pure machine: what happens goes in with the time, what is to be done comes out. No I/O, no clock.

Two ways to be used, one machine. `spotguard run` guards one command: it ends it when everybody has committed, or
at the reserve. `spotguard agent` serves the processes of many users: it tells, and never kills.

The order that must hold, whatever happens (law 11): first the notice to the sessions, then their commits, then
the end of the command. TERM goes out early in one case only: when nobody is registered who could save otherwise.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

from ...providers.notice import NoticeKind
from ..actions import Action, Launch, Publish, Rest, SignalGroup
from ..events import (
    PASSED_ON,
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
    Signalled,
    Watching,
)
from ..outcome import BY_ITSELF, SIGNALLED
from .hearing import OUTLIVED, Command, Policy
from .peers import REJOIN
from .preemption import Preemption
from .service import MachineService

__all__ = ["Machine", "Policy"]

#: A second SIGTERM or a SIGINT ends the command at once: so many seconds later it is killed.
FORCE_GRACE = 5.0
#: SIGTERMs of so many seconds are one: at a preemption and at a time limit Slurm sends it twice in a row (slurmd's
#: `_rpc_timelimit`, and `_rpc_terminate_job` behind it: seen), and nobody who means haste is that fast.
ONE_TERM = 2.0
#: The kernel tells of the command's end before the last words of its sessions are read from their sockets.
LINGER = 0.5

#: A notice that was seen so soon after the launch stood there before it: a first look takes a second, or a time-out or two.
FIRST_LOOK = 10.0
#: A command that a person ended at the terminal did not crash.
BY_HAND = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: `EX_CONFIG`: every checkpoint is damaged (`hooks.restore.begin_anew`). Another start would find the same.
BEYOND_US = 78
#: Notices behind which no machine goes away.
OF_A_PERSON = frozenset({NoticeKind.SIGNAL, NoticeKind.DRILL, NoticeKind.ORPHAN})


class Machine(MachineService):
    """The agent's decisions. One thread feeds it; nothing else changes what it knows."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.restarts = 0
        self._force_at: float | None = None
        #: Until then a SIGTERM is still the first one.
        self._first_term_until = 0.0
        self._on: dict[type[Any], Callable[[Any], None]] = {
            NoticeSeen: lambda e: self._seen(e.notice),
            NoticeGone: lambda e: self._gone(e.id),
            Opened: self._opened,
            Heard: self._heard,
            Closed: self._closed,
            Asked: self._asked,
            Launched: self._launched,
            GroupSeen: self._group_seen,
            Signalled: lambda e: self._signalled(e.signum, e.going_down),
            CommandEnded: self._ended,
            Watching: self._watched,
        }

    # --- the ways in ---

    def begin(self, now: float, orphan: int | None = None) -> list[Action]:
        """The first actions: the command is launched.

        Args:
            orphan: the command of an agent that was killed; 0 if only other processes of it are left. It ends before, with
                its newest state saved: two that train under one run id would each restore the other's checkpoints.
        """
        self._now = now
        if orphan is not None:
            self._inherit(orphan)
        elif self.policy.command:
            self._do(Launch())
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: Event | None, now: float) -> list[Action]:
        """What to do now that this happened; with None, now that `next_wake` has come."""
        if self.finished:
            return []
        self._now = now
        if event is not None and (handler := self._on.get(type(event))) is not None:
            handler(event)
        if not self.finished:
            self._settle()
        actions, self._actions = self._actions, []
        return actions

    @property
    def next_wake(self) -> float | None:
        """Monotonic seconds at which `handle(None, now)` is due, though nothing happens."""
        if self.finished:
            return None
        p, times = self.pending, [self.outlive_at, self._force_at, *self.horizon.wakes]
        if p is not None and p.rehearsal:
            times.append(p.limit)
        elif p is not None and not self.policy.command:
            times.append(p.return_by)
            times.append(p.machine_deadline + OUTLIVED if p.published else p.deadline)
        elif p is not None and self._running and not p.killed:
            times += [p.limit, p.term_at, p.again_at, p.return_by]
        elif p is not None and self.command is not None and not self._running:
            times += [self.command.ended_at + LINGER, p.return_by, p.limit]
        times += self.launchers.wakes
        if self.command is not None and not self._running:
            times.append(self.command.look_at)
            times += [self.command.ended_at + LINGER] if self.launchers else []
        return min((t for t in times if t is not None and t > self._now), default=None)

    @property
    def doomed(self) -> bool:
        """Whether a notice is pending that every training process is told of."""
        # A call of one run says nothing to the others of this machine. Nor does one user's drill.
        p = self.pending
        return p is not None and not p.rehearsal and p.runs is None and self._is_everybodys(p)

    @property
    def phase(self) -> str:
        """For `status`: "watching", "saving", "ending", "outliving", "waiting" or "rejoining"."""
        if self._again:
            return "rejoining"
        if self.outlive_at is not None:
            return "outliving" if self.policy.outlive else "waiting"
        if self.pending is None:
            return "ending" if self._stopping else "watching"
        return "ending" if self.pending.ending or self.pending.published else "saving"

    # --- spotguard's own signals ---

    def _signalled(self, signum: int, going_down: bool) -> None:
        if not self.policy.command:
            if signum in (signal.SIGTERM, signal.SIGINT):
                self._serve_no_more(signum, going_down)
        elif not self._running and self.outlive_at is not None:
            if signum == signal.SIGTERM:
                self._finish(self.policy.exit_code)
            elif signum in BY_HAND:  # 75 would have a shell's loop go on
                self._finish(128 + signum)
        elif signum in PASSED_ON:
            self._do(SignalGroup(signum))
        elif signum == signal.SIGTERM and self._now < self._first_term_until:
            self._log("SIGTERM was sent again within a moment: it is taken for one", logging.DEBUG)
        elif signum == signal.SIGINT or self._terms:
            self._stop(signum)
        elif signum == signal.SIGTERM:
            self._terms += 1
            self._first_term_until = self._now + ONE_TERM
            self._noticed(self._sigterm())

    def _stop(self, signum: int) -> None:
        """End at once: somebody asked twice, or pressed Ctrl-C."""
        if self._stopping:
            self._log("asked again to end: SIGKILL to the command", logging.WARNING)
            self._kill()
            self._force_at = None
            return
        self._stopping = True
        self._force_at = self._now + FORCE_GRACE
        name = signal.Signals(signum).name
        self._log(f"{name}: ending the command at once, SIGKILL in {FORCE_GRACE:.0f} s", logging.WARNING)
        if self.pending is not None and not self.pending.rehearsal:
            self.pending.ending = f"ended at once by {name}"
            self.pending.term_at = self.pending.again_at = None
            self.pending.end_all()
        self._signal_group(signum)

    def _kill(self) -> None:
        """Whoever asked it to end has waited long enough."""
        if self.pending is not None and not self.pending.rehearsal:
            self.pending.then("killed")
        self._kill_all()

    # --- the command ---

    def _launched(self, event: Launched) -> None:
        self.command = Command(event.pid, since=self._now)
        if self._stopping:  # the signal came while there was nothing to send it to
            self._signal_group(signal.SIGTERM)

    def _ended(self, event: CommandEnded) -> None:
        command = self.command
        if command is not None and command.pid == event.pid and command.returncode is None:
            command.returncode, command.ended_at = event.returncode, self._now

    def _settle(self) -> None:
        """Whatever is due now, by the clock or because everybody has answered."""
        self._look_ahead()
        self._do(*map(Publish, self.launchers.over(self.sessions.values(), self._now)))
        if self.pending is not None and self.pending.rehearsal:
            self._settle_rehearsal(self.pending)
        elif self.pending is not None:
            self._await_return(self.pending)
        self._ask_for_a_checkpoint()
        if not self.policy.command:
            if self.pending is not None:
                self._serve(self.pending)
            if self._terms and not self._somebody_saves():
                self._end_service()
        elif self._running:
            if self._force_at is not None and self._now >= self._force_at:
                self._force_at = None
                self._log("the command did not end: SIGKILL", logging.WARNING)
                self._kill()
            if self.pending is not None and not self.pending.rehearsal:
                self._towards_the_end(self.pending)
        elif self.command is not None:
            self._after(self.command)
        if self.outlive_at is None or self._now < self.outlive_at:
            return
        if self._again:
            self._relaunch(self._again)
        elif self.policy.outlive:
            self._relaunch("this machine is still here")
        else:
            self._finish(self.policy.exit_code)

    def _settle_rehearsal(self, p: Preemption) -> None:
        if p.all_done:
            self._rehearsed(p, "training goes on")
        elif self._now >= p.limit:
            self._rehearsed(p, "out of time; training goes on")

    def _after(self, command: Command) -> None:
        if self.launchers and self._now < command.ended_at + LINGER:
            return  # last words of its ranks
        self._do(*map(Publish, self.launchers.end()))
        p = self.pending
        if p is not None and p.rehearsal:
            self._rehearsed(p, "the command ended")
            p = None
        if p is None:
            self._after_all(command)
        elif not self._still_talking(p, command) and self._nothing_left(p, command):
            self._conclude(p, command)

    def _still_talking(self, p: Preemption, command: Command) -> bool:
        """Whether last words are on their way, or a process that the launcher left behind still saves."""
        for (
            part
        ) in p.parts.values():  # a socket closes in mid-exit, before its process can be seen to be gone
            part.dead = part.dead or (part.closed and part.session.pid == command.pid)
        if self._now < command.ended_at + LINGER:
            if any(part.open for part in p.parts.values()):
                return True
        else:
            for part in p.parts.values():
                part.dead = part.dead or part.session.pid == command.pid
        if p.killed or self._stopping or self._now >= p.limit:
            return False
        if p.return_by is not None:
            return True
        return any(not part.done for part in p.parts.values())

    def _nothing_left(self, p: Preemption, command: Command) -> bool:
        """Whether what comes next would find the machine clear; not asked of a command that was simply done."""
        if p.killed or (self._stopping and self._force_at is None):
            return True
        if command.returncode == 0 and not (p.signalled or p.ending or p.of_orphan):
            if any(not part.done for part in p.parts.values()):
                self._kill_all()  # the launcher is gone, what it left behind is out of time
            return True
        self._saves_are_over(p)
        return self._cleared(command, p.limit if self._force_at is None else min(p.limit, self._force_at))

    def _conclude(self, p: Preemption, command: Command) -> None:
        """The command is gone after a notice: the outcome, and what comes next."""
        returncode = None if p.of_orphan else command.returncode
        ended = p.ending or (SIGNALLED if p.signalled else BY_ITSELF)
        asked = p.signalled or bool(p.ending)
        code = 0 if returncode == 0 and not asked else self.policy.exit_code
        if code != 0 and p.stays and not self._stopping:
            if p.parts or p.signalled or not p.of_orphan:  # else nothing was there to be ended
                self._publish(p, ended, returncode, None)
            self._forget(p)
            self._start_here(p)
            return
        outlive = code != 0 and self.policy.outlive and not self._stopping
        outlive = outlive and (p.withdrawn or (p.machine_goes and not self._terms))
        self._publish(p, ended, returncode, None if outlive else code)
        self._forget(p)
        if outlive and p.withdrawn:
            self._relaunch("the notice was withdrawn")
        elif outlive:
            self._wait_out(p, OUTLIVED)
        elif code != 0 and self._began_in_vain(p, command):
            self._wait_out(p, 0.0)
            self._log(
                f"the notice came before anything was trained: waiting {p.machine_deadline - self._now:.1f} s, until its "
                f"deadline, before exit code {code}, or a restart would find it again at once. SIGTERM or Ctrl-C: exit now",
                logging.WARNING,
            )
        else:
            self._finish(code, p.limit)

    def _start_here(self, p: Preemption) -> None:
        """This machine stays: the job is started again at once, and that is no crash."""
        if p.of_orphan:
            self._relaunch("no training of the spotguard run that was killed is left")
            return
        self._rejoin_until = self._now + REJOIN
        self._relaunch("another machine of the job was noticed, this one stays")

    def _began_in_vain(self, p: Preemption, command: Command) -> bool:
        """Whether this machine was going away before anything was trained on it: whoever starts it again here at once (a
        shell's loop, systemd) would do so over and over until the machine is gone."""
        if self._stopping or self._terms or all(n.kind in OF_A_PERSON for n in p.standing.values()):
            return False
        seen = p.notice.seen_at
        return seen <= command.since + FIRST_LOOK and all(q.session.since >= seen for q in p.parts.values())

    def _wait_out(self, p: Preemption, patience: float) -> None:
        self.command = None
        self._patience = patience
        self.outlive_at = p.machine_deadline + patience
        self._outlived = set(p.standing)
        self._do(Rest())

    def _after_all(self, command: Command) -> None:
        """The command is gone, and no notice stands."""
        left = self._left_alive() or self._orphaned(command)
        if self._force_at is not None and left and not self._cleared(command, self._force_at):
            return  # somebody asked it to end at once: its workers too
        returncode = command.returncode if command.returncode is not None else 0
        code = returncode if returncode >= 0 else 128 - returncode
        if command.leave_by is not None and command.ended_at <= command.leave_by and code != 0:
            if self.policy.outlive and not self._stopping:
                self._relaunch("the notice was withdrawn")
            else:
                self._over(command, self.policy.exit_code)
        elif code != 0 and not self._by_hand(code) and self._is_alone(command):
            self._look_again(code)
        elif (
            code not in (0, BEYOND_US)
            and not self._by_hand(code)
            and self.restarts < self.policy.max_restarts
        ):
            self.restarts += 1
            self._relaunch(f"it crashed with {code}, restart {self.restarts} of {self.policy.max_restarts}")
        else:
            self._over(command, code)

    def _over(self, command: Command, code: int) -> None:
        if code == 0 or self._stopping or self._swept(command):
            self._finish(code)

    def _by_hand(self, code: int) -> bool:
        return self._stopping or code - 128 in BY_HAND

    def _relaunch(self, why: str) -> None:
        self._log(f"starting the command again: {why}", logging.WARNING)
        self._kill_all()  # whatever is there still holds the run id
        self.outlive_at, self.command, self._again = None, None, ""
        self._outlived = set()
        self._do(Launch(tuple(self._moves.values())))
        self._moves.clear()
