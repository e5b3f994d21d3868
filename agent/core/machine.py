"""The agent's state machine: events and the time go in, actions come out. Pure: no I/O, no clock.

`spotguard run` guards one command, and ends it when every participant has committed, or at the reserve. `spotguard agent`
serves the processes of many users; it delivers notices, and never ends a process. `COMMAND` and `SERVICE` at the end of this
file are the tables of what each event does in each state.

This order always holds (law 11): first the notice to the sessions, then their commits, then the end of the command. The agent
sends TERM early in one case only: if no process that could save otherwise is registered.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any

from ...providers.notice import NoticeKind
from ...providers.text import span
from ..actions import Action, Finish, Launch, Publish, Rest, SignalGroup
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
from .answers import Answers
from .command import OUTLIVED, Command, CommandGroup, Restart
from .delivery import Delivery
from .notices import NoticeTracker, Upcoming
from .peers import LauncherNotices, Peers
from .preemption import EndState, Preemption
from .service import Service, sigterm
from .session import Session, Sessions
from .shutdown import Shutdown
from .state import MachineState, Policy, Turn

#: Seconds after a second SIGTERM, or a SIGINT, at which the command is killed.
FORCE_GRACE = 5.0
#: SIGTERMs within this many seconds count as one. At a preemption and at a time limit, Slurm sends two in a row (slurmd's
#: `_rpc_timelimit`, then `_rpc_terminate_job`: seen). No person who wants a faster end is that fast.
ONE_TERM = 2.0
#: Seconds after the command's end in which the last messages of its sessions may still be read from their sockets.
LINGER = 0.5
#: Seconds between a command that ended before its peers were there, and its next start.
PAUSE = 1.0
#: A notice seen within this many seconds after the launch counts as older than it: a first poll takes a second, or a time-out
#: or two.
FIRST_LOOK = 10.0
#: A command that a person ended at the terminal did not crash.
BY_HAND = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: `EX_CONFIG`: every checkpoint is damaged (`hooks.restore.begin_anew`). Another start would find the same.
BEYOND_US = 78
#: Kinds of notices that announce no machine's end.
OF_A_PERSON = frozenset({NoticeKind.SIGNAL, NoticeKind.DRILL, NoticeKind.ORPHAN})


class Machine:
    """The state machine of the agent. One thread calls it, and nothing else changes its state.

    Args:
        policy: the options that decide how a notice ends.

    Example:
        >>> machine = Machine(Policy())
        >>> machine.begin(now=0.0)
        [Launch(moves=())]
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.restarts = 0
        self.finished = False
        self._turn = Turn(policy)
        self._sessions = Sessions()
        self._notices = NoticeTracker(policy.window)
        self._launchers = LauncherNotices()
        self._command = CommandGroup(self._turn, self._sessions)
        self._restart = Restart()
        self._delivery = Delivery(self._turn, self._sessions, self._notices, self._command, self._restart)
        self._peers = Peers(self._turn, self._sessions, self._command, self._delivery)
        self._answers = Answers(
            self._turn,
            self._sessions,
            self._notices,
            self._command,
            self._delivery,
            self._peers,
            self._launchers,
        )
        self._shutdown = Shutdown(self._turn, self._command, self._delivery)
        self._service = Service(self._turn, self._sessions, self._delivery)
        #: The number of SIGTERMs to `spotguard run` that count.
        self._terms = 0
        #: Monotonic seconds until which a SIGTERM counts as the first one.
        self._first_term_until = 0.0
        #: Monotonic seconds at which SIGKILL follows a forced end.
        self._force_at: float | None = None

    # --- events in, actions out ---

    def begin(self, now: float, orphan: int | None = None) -> list[Action]:
        """Return the first actions: the command is launched.

        Args:
            orphan: pid of the command of an agent that was killed; 0 if only other processes of that command are left. This
                command first saves its newest state and ends. Two commands that train under one run id would each restore the
                other's checkpoints.
        """
        self._turn.now = now
        if orphan is not None:
            self._shutdown.inherit(orphan)
        elif self.policy.command:
            self._turn.do(Launch())
        return self._turn.take()

    def handle(self, event: Event | None, now: float) -> list[Action]:
        """Return the actions for this event; with None, the actions that are due because `next_wake` has come."""
        if self.finished:
            return []
        self._turn.now = now
        if event is not None:
            self._step(event)
        if not self.finished:
            self._delivery.look_ahead()
            self._turn.do(*map(Publish, self._launchers.over(self._sessions.open.values(), now)))
            self._step(None)
        return self._turn.take()

    def _step(self, event: Event | None) -> None:
        """Call the table's handler for this event in this state."""
        table = COMMAND if self.policy.command else SERVICE
        if (handler := table[self.state].get(type(event))) is not None:
            handler(self, event)

    # --- queries ---

    @property
    def sessions(self) -> Mapping[int, Session]:
        """Registered training processes, by number."""
        return self._sessions.open

    @property
    def preemption(self) -> Preemption | None:
        """The notice that is being answered."""
        return self._delivery.active

    @property
    def upcoming(self) -> Upcoming:
        """Notices whose deadline is far off, and warnings."""
        return self._notices.upcoming

    @property
    def command(self) -> Command | None:
        """The current start of the command."""
        return self._command.current

    @property
    def state(self) -> MachineState:
        """The state of the machine."""
        p, command = self._delivery.active, self._command.current
        if self.finished:
            return MachineState.FINISHED
        if self._restart.at is not None:
            return MachineState.WAITING
        if command is not None and command.returncode is not None:
            return MachineState.CLEARING
        if p is None:
            return MachineState.ENDING if self._turn.stopping else MachineState.WATCHING
        if p.rehearsal:
            return MachineState.REHEARSING
        if p.published and not self.policy.command:
            return MachineState.SERVED
        return MachineState.ENDING if p.ending else MachineState.SAVING

    @property
    def phase(self) -> str:
        """The phase for `status`: "watching", "saving", "ending", "outliving", "waiting" or "rejoining"."""
        if self._restart.at is not None:
            if self._restart.reason:
                return "rejoining"
            return "outliving" if self.policy.outlive else "waiting"
        p = self._delivery.active
        if p is None:
            return "ending" if self._turn.stopping else "watching"
        return "ending" if p.ending or p.published else "saving"

    @property
    def departing(self) -> bool:
        """Whether a notice is active that every training process gets."""
        # A peer's preemption concerns one run, and one user's drill that user.
        p = self._delivery.active
        return p is not None and not p.rehearsal and p.runs is None and self._delivery.is_everybodys(p)

    @property
    def next_wake(self) -> float | None:
        """Monotonic seconds at which `handle(None, now)` is due although no event comes."""
        if self.finished:
            return None
        return min((at for at in self._wakes() if at is not None and at > self._turn.now), default=None)

    def _wakes(self) -> Iterator[float | None]:
        p, command, running = self._delivery.active, self._command.current, self._command.running
        yield from (self._restart.at, self._force_at, *self._notices.upcoming.wakes, *self._launchers.wakes)
        if p is not None and p.rehearsal:
            yield p.limit
        elif p is not None and not self.policy.command:
            yield p.return_by
            yield p.machine_deadline + OUTLIVED if p.published else p.deadline
        elif p is not None and running and p.end_state is not EndState.KILLED:
            yield from (p.limit, p.term_at, p.again_at, p.return_by)
        elif p is not None and command is not None and not running:
            yield from (command.ended_at + LINGER, p.return_by, p.limit)
        if command is not None and not running:
            yield command.look_at
            if self._launchers:
                yield command.ended_at + LINGER

    # --- events ---

    def _seen(self, event: NoticeSeen) -> None:
        self._delivery.seen(event.notice)

    def _gone(self, event: NoticeGone) -> None:
        self._delivery.withdrawn(event.id)

    def _opened(self, event: Opened) -> None:
        self._answers.opened(event)

    def _heard(self, event: Heard) -> None:
        self._answers.heard(event)

    def _closed(self, event: Closed) -> None:
        self._answers.closed(event)

    def _asked(self, event: Asked) -> None:
        self._delivery.asked(event)

    def _watched(self, event: Watching) -> None:
        self._sessions.watching.add(event.session)

    def _launched(self, event: Launched) -> None:
        self._command.current = Command(event.pid, since=self._turn.now)
        if self._turn.stopping:  # the signal came while there was nothing to send it to
            self._command.signal(signal.SIGTERM)

    def _ended(self, event: CommandEnded) -> None:
        self._command.ended(event)

    def _group_seen(self, event: GroupSeen) -> None:
        self._command.group_seen(event)

    def _signal_to_service(self, event: Signalled) -> None:
        if event.signum in (signal.SIGTERM, signal.SIGINT) and self._service.signalled(
            event.signum, going_down=event.going_down
        ):
            self._service.stop()
            self._finish(0)

    def _signal_between_starts(self, event: Signalled) -> None:
        if event.signum == signal.SIGTERM:
            self._finish(self.policy.exit_code)
        elif event.signum in BY_HAND:  # with 75, a shell's loop would go on
            self._finish(128 + event.signum)

    def _signal_to_run(self, event: Signalled) -> None:
        signum = event.signum
        if signum in PASSED_ON:
            self._turn.do(SignalGroup(signum))
        elif signum == signal.SIGTERM and self._turn.now < self._first_term_until:
            self._turn.log("SIGTERM was sent again within a moment: it is taken for one", logging.DEBUG)
        elif signum == signal.SIGINT or self._terms:
            self._force(signum)
        elif signum == signal.SIGTERM:
            self._terms += 1
            self._first_term_until = self._turn.now + ONE_TERM
            self._delivery.noticed(sigterm(self._turn))

    def _force(self, signum: int) -> None:
        """End the command at once: a person asked twice, or pressed Ctrl-C."""
        if self._turn.stopping:
            self._turn.log("asked again to end: SIGKILL to the command", logging.WARNING)
            self._kill()
            return
        self._turn.stopping = True
        self._force_at = self._turn.now + FORCE_GRACE
        name = signal.Signals(signum).name
        self._turn.log(f"{name}: ending the command at once, SIGKILL in {FORCE_GRACE:.0f} s", logging.WARNING)
        p = self._delivery.active
        if p is not None and not p.rehearsal:
            p.end(EndState.TERMINATING, f"ended at once by {name}")
            p.term_at = p.again_at = None
            p.end_all()
        self._command.signal(signum)

    def _kill(self) -> None:
        """Kill a command that was asked to end, and whose time is over."""
        self._force_at = None
        p = self._delivery.active
        if p is not None and not p.rehearsal:
            p.then("killed")
        self._command.kill_all()

    # --- due actions: the time has come, or every participant has answered ---

    def _watch(self, _: None = None) -> None:
        self._delivery.ask_for_checkpoint()

    def _watch_command(self, _: None) -> None:
        self._watch()
        self._kill_if_forced()

    def _rehearse(self, _: None = None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.advance_rehearsal(p)
        self._watch()

    def _rehearse_with_command(self, _: None) -> None:
        self._rehearse()
        self._kill_if_forced()

    def _save_with_command(self, _: None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.await_return(p)
        self._watch()
        self._kill_if_forced()
        if p is not None and self._command.running:
            self._shutdown.advance(p)

    def _kill_if_forced(self) -> None:
        if self._command.running and self._force_at is not None and self._turn.now >= self._force_at:
            self._turn.log("the command did not end: SIGKILL", logging.WARNING)
            self._kill()

    def _serve(self, _: None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.await_return(p)
            self._service.advance(p)
        self._end_service_if_over()

    def _rehearse_service(self, _: None) -> None:
        self._rehearse()
        self._end_service_if_over()

    def _watch_service(self, _: None) -> None:
        self._watch()
        self._end_service_if_over()

    def _end_service_if_over(self) -> None:
        if self._service.over:
            self._service.stop()
            self._finish(0)

    def _clear(self, _: None) -> None:
        """Handle the state after the command's end."""
        p, command = self._delivery.active, self._command.current
        if p is not None and p.rehearsal:
            self._delivery.advance_rehearsal(p)
        elif p is not None:
            self._delivery.await_return(p)
        self._watch()
        if command is not None and not (self._launchers and self._turn.now < command.ended_at + LINGER):
            self._turn.do(*map(Publish, self._launchers.end()))
            self._conclude(command)
        self._end_wait()

    def _wait(self, _: None) -> None:
        self._watch()
        self._end_wait()

    def _end_wait(self) -> None:
        """Start the command again, or exit, if the wait for that is over."""
        if self.finished or self._restart.at is None or self._turn.now < self._restart.at:
            return
        if self._restart.reason:
            self._relaunch(self._restart.reason)
        elif self.policy.outlive:
            self._relaunch("this machine is still here")
        else:
            self._finish(self.policy.exit_code)

    # --- after the command's end ---

    def _conclude(self, command: Command) -> None:
        p = self._delivery.active
        if p is not None and p.rehearsal:
            self._delivery.rehearsed(p, "the command ended")
            p = None
        if p is None:
            self._after_end(command)
        elif not self._still_talking(p, command) and self._nothing_left(p, command):
            self._after_notice(p, command)

    def _still_talking(self, p: Preemption, command: Command) -> bool:
        """Return whether last messages are on their way, or a process that the launcher left behind still saves."""
        for part in p.parts.values():
            # A socket closes during the exit, before the agent can see that its process is gone.
            part.dead = part.dead or (part.closed and part.session.pid == command.pid)
        if self._turn.now < command.ended_at + LINGER:
            if any(part.open for part in p.parts.values()):
                return True
        else:
            for part in p.parts.values():
                part.dead = part.dead or part.session.pid == command.pid
        if p.end_state is EndState.KILLED or self._turn.stopping or self._turn.now >= p.limit:
            return False
        if p.return_by is not None:
            return True
        return any(not part.done for part in p.parts.values())

    def _nothing_left(self, p: Preemption, command: Command) -> bool:
        """Return whether no process of the command is left that the next start would meet.

        A command that ended by itself with exit code 0 need not be clear.
        """
        if p.end_state is EndState.KILLED or (self._turn.stopping and self._force_at is None):
            return True
        if command.returncode == 0 and not (p.signalled or p.ending or p.of_orphan):
            if any(not part.done for part in p.parts.values()):
                self._command.kill_all()  # the launcher is gone, and the processes it left behind are out of time
            return True
        self._shutdown.saves_are_over(p)
        limit = p.limit if self._force_at is None else min(p.limit, self._force_at)
        return self._shutdown.cleared(command, limit)

    def _after_notice(self, p: Preemption, command: Command) -> None:
        """Publish the outcome of a notice after the command's end, and decide what comes next."""
        returncode = None if p.of_orphan else command.returncode
        asked = p.signalled or p.ending
        code = 0 if returncode == 0 and not asked else self.policy.exit_code
        if code != 0 and p.stays and not self._turn.stopping:
            if p.parts or p.signalled or not p.of_orphan:  # else there was no process to end
                self._delivery.publish(p, p.ended, returncode, None)
            self._delivery.forget(p)
            self._start_here(p)
            return
        outlive = code != 0 and self.policy.outlive and not self._turn.stopping
        outlive = outlive and (p.withdrawn or (p.machine_goes and not self._terms))
        self._delivery.publish(p, p.ended, returncode, None if outlive else code)
        self._delivery.forget(p)
        if outlive and p.withdrawn:
            self._relaunch("the notice was withdrawn")
        elif outlive:
            self._wait_out(p, OUTLIVED)
        elif code != 0 and self._began_in_vain(p, command):
            self._wait_out(p, 0.0)
            self._turn.log(
                f"the notice came before anything was trained: waiting {p.machine_deadline - self._turn.now:.1f} s, until its "
                f"deadline, before exit code {code}, or a restart would find it again at once. SIGTERM or Ctrl-C: exit now",
                logging.WARNING,
            )
        else:
            self._finish(code, p.limit)

    def _start_here(self, p: Preemption) -> None:
        """Start the job again at once, because this machine stays. This does not count as a crash."""
        if p.of_orphan:
            self._relaunch("no training of the spotguard run that was killed is left")
            return
        self._peers.rejoin()
        self._relaunch("another machine of the job was noticed, this one stays")

    def _began_in_vain(self, p: Preemption, command: Command) -> bool:
        """Return whether the notice came before anything was trained on this machine.

        A shell's loop or systemd, which starts the command again at once, would do so over and over until the machine is gone.
        """
        if self._turn.stopping or self._terms or all(n.kind in OF_A_PERSON for n in p.standing.values()):
            return False
        seen = p.notice.seen_at
        return seen <= command.since + FIRST_LOOK and all(q.session.since >= seen for q in p.parts.values())

    def _wait_out(self, p: Preemption, patience: float) -> None:
        self._command.current = None
        self._restart.wait(p.machine_deadline + patience, patience, notices=p.standing)
        self._turn.do(Rest())

    def _after_end(self, command: Command) -> None:
        """Decide what comes next after the command's end, if no notice is active."""
        left = self._command.left_alive() or self._command.orphaned(command)
        if self._force_at is not None and left and not self._shutdown.cleared(command, self._force_at):
            return  # a person asked for the end at once, which includes the workers
        returncode = command.returncode if command.returncode is not None else 0
        code = returncode if returncode >= 0 else 128 - returncode
        by_hand = self._turn.stopping or code - 128 in BY_HAND
        if command.leave_by is not None and command.ended_at <= command.leave_by and code != 0:
            if self.policy.outlive and not self._turn.stopping:
                self._relaunch("the notice was withdrawn")
            else:
                self._over(command, self.policy.exit_code)
        elif code != 0 and not by_hand and (seconds := self._peers.seconds_to_rejoin(command)):
            self._try_again(code, seconds)
        elif code not in (0, BEYOND_US) and not by_hand and self.restarts < self.policy.max_restarts:
            self.restarts += 1
            self._relaunch(f"it crashed with {code}, restart {self.restarts} of {self.policy.max_restarts}")
        else:
            self._over(command, code)

    def _try_again(self, code: int, seconds: float) -> None:
        self._turn.log(
            f"the command ended with {code} before a training process had registered: the job's other machines may not be "
            f"there yet, so it is started again in {PAUSE:.0f} s, and for {span(seconds)} more",
            logging.WARNING,
        )
        self._command.current = None
        patience = OUTLIVED if self.policy.outlive else 0.0
        self._restart.wait(
            self._turn.now + PAUSE, patience, reason="the job's other machines may be there now"
        )
        self._turn.do(Rest())

    def _over(self, command: Command, code: int) -> None:
        if code == 0 or self._turn.stopping or self._shutdown.swept(command):
            self._finish(code)

    def _relaunch(self, why: str) -> None:
        self._turn.log(f"starting the command again: {why}", logging.WARNING)
        self._command.kill_all()  # any process that is left holds the run id
        self._command.current = None
        self._restart.over()
        self._turn.do(Launch(self._peers.take_moves()))

    def _finish(self, code: int, until: float = 0.0) -> None:
        self._turn.do(*map(Publish, self._launchers.end()))
        self.finished = True
        self._turn.do(Finish(code, 0.0 if self._turn.stopping else until))


_Handler = Callable[[Machine, Any], None]

#: Events that do the same in every state.
_ALWAYS: dict[type[Any], _Handler] = {
    NoticeSeen: Machine._seen,
    NoticeGone: Machine._gone,
    Opened: Machine._opened,
    Heard: Machine._heard,
    Closed: Machine._closed,
    Asked: Machine._asked,
    Watching: Machine._watched,
    Launched: Machine._launched,
    CommandEnded: Machine._ended,
    GroupSeen: Machine._group_seen,
}

#: The handlers of `spotguard run`, by state and event. NoneType: a due action, without an event.
COMMAND: dict[MachineState, dict[type[Any], _Handler]] = {
    MachineState.WATCHING: {**_ALWAYS, Signalled: Machine._signal_to_run, NoneType: Machine._watch_command},
    MachineState.REHEARSING: {
        **_ALWAYS,
        Signalled: Machine._signal_to_run,
        NoneType: Machine._rehearse_with_command,
    },
    MachineState.SAVING: {**_ALWAYS, Signalled: Machine._signal_to_run, NoneType: Machine._save_with_command},
    MachineState.ENDING: {**_ALWAYS, Signalled: Machine._signal_to_run, NoneType: Machine._save_with_command},
    MachineState.CLEARING: {**_ALWAYS, Signalled: Machine._signal_to_run, NoneType: Machine._clear},
    MachineState.WAITING: {**_ALWAYS, Signalled: Machine._signal_between_starts, NoneType: Machine._wait},
    MachineState.FINISHED: {},
}

#: The handlers of `spotguard agent`, by state and event.
SERVICE: dict[MachineState, dict[type[Any], _Handler]] = {
    MachineState.WATCHING: {
        **_ALWAYS,
        Signalled: Machine._signal_to_service,
        NoneType: Machine._watch_service,
    },
    MachineState.REHEARSING: {
        **_ALWAYS,
        Signalled: Machine._signal_to_service,
        NoneType: Machine._rehearse_service,
    },
    MachineState.SAVING: {**_ALWAYS, Signalled: Machine._signal_to_service, NoneType: Machine._serve},
    MachineState.SERVED: {**_ALWAYS, Signalled: Machine._signal_to_service, NoneType: Machine._serve},
    MachineState.FINISHED: {},
}
