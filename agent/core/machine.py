"""The agent's state machine: events and the time go in, actions come out. Pure: no I/O, no clock.

`spotguard run` guards one command, and ends it when every participant has committed, or at the reserve. `spotguard agent`
serves the processes of many users; it delivers notices, and never ends a process. `COMMAND` and `SERVICE` at the end of this
file are the tables of what each event does in each state.

This order always holds (law 11): first the notice to the sessions, then their commits, then the end of the command. The agent
sends TERM early in one case only: if no process that could save otherwise is registered.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any

from ..actions import Action, Publish
from ..events import (
    Asked,
    Closed,
    CommandEnded,
    Event,
    GroupSeen,
    Heard,
    Launched,
    MachineSeen,
    NoticeGone,
    NoticeSeen,
    Opened,
    ProcessSeen,
    Signalled,
    Verified,
    Watching,
)
from .command import OUTLIVED, Command, CommandGroup, Restart
from .delivery import Delivery
from .ending.restart_policy import LINGER, RestartPolicy
from .ending.shutdown import Service, Shutdown
from .ending.sigterm import RunSignals
from .ending.stall_response import StallResponse
from .failures.errors import FailureCause, FailureLog
from .failures.recovery import Recovery
from .failures.stall import StallWatch
from .failures.verification import VerificationSchedule
from .notices import NoticeTracker, Upcoming
from .peers import Peers
from .preemption import EndState, Preemption
from .session import Session, Sessions
from .session_messages import Answers, LauncherNotices
from .state import MachineState, Policy, Turn


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
        self._turn = Turn(policy)
        self._sessions = Sessions()
        self._notices = NoticeTracker(policy.window)
        self._launchers = LauncherNotices()
        self._command = CommandGroup(self._turn, self._sessions)
        self._restart = Restart()
        self._delivery = Delivery(self._turn, self._sessions, self._notices, self._command, self._restart)
        self._stalls = StallWatch(policy.stall_first)
        self._failures = FailureLog()
        self._recovery = Recovery(policy.recover, policy.max_restarts, self._failures)
        self.verification = VerificationSchedule(self._turn, self._sessions, policy.verify_every)
        self._peers = Peers(self._turn, self._sessions, self._command, self._delivery)
        self._signals = RunSignals(self._turn, self._command, self._delivery)
        self._answers = Answers(
            self._turn,
            self._sessions,
            self._notices,
            self._command,
            self._delivery,
            self._peers,
            self._launchers,
            self._signals,
            self._stalls,
            self._failures,
        )
        self._shutdown = Shutdown(self._turn, self._command, self._delivery)
        self._stall_response = StallResponse(
            self._turn,
            self._sessions,
            self._command,
            self._delivery,
            self._stalls,
            self._failures,
            self._recovery,
        )
        self._restarts = RestartPolicy(
            self._turn,
            self._command,
            self._restart,
            self._delivery,
            self._peers,
            self._shutdown,
            self._recovery,
            self._stall_response,
        )
        self._service = Service(self._turn, self._sessions, self._delivery)

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
            self._turn.do(self._recovery.launch())
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
            self.verification.advance(watching=self.state is MachineState.WATCHING)
        return self.take()

    def take(self) -> list[Action]:
        """Return the actions asked for so far. After an error of `handle` they are due all the same, `Finish` above all."""
        if self._turn.finish is not None:
            self._turn.do(*map(Publish, self._launchers.end()), self._turn.finish)
        return self._turn.take()

    def _step(self, event: Event | None) -> None:
        """Call the table's handler for this event in this state."""
        table = COMMAND if self.policy.command else SERVICE
        if (handler := table[self.state].get(type(event))) is not None:
            handler(self, event)

    # --- queries ---

    @property
    def finished(self) -> bool:
        """Whether `Finish` was the last action."""
        return self._turn.finish is not None

    @property
    def restarts(self) -> int:
        """How often the command was started again after a crash."""
        return self._restarts.count

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
    def unattached(self) -> str:
        """Why `--attach` has attached nothing in the current start of the command; "" if it has, or is not asked to."""
        return self._command.unattached

    @property
    def failure(self) -> FailureCause | None:
        """The cause of the command's last failure."""
        return self._failures.last

    @property
    def stalls(self) -> StallWatch:
        """The runs that stand still, and the silent machines."""
        return self._stalls

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
        """The phase for `status`: "watching", "saving", "ending", "outliving", "waiting" or "restarting"."""
        if self._restart.at is not None:
            if self._restart.reason:
                return "restarting"
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
        yield from (
            self._restart.at,
            self._turn.force_at,
            *self._notices.upcoming.wakes,
            *self._launchers.wakes,
            *self._stalls.wakes,
        )
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
            if self._may_be_told(command):
                yield command.ended_at + LINGER

    # --- events ---

    def _launched(self, event: Launched) -> None:
        self._command.current = Command(event.pid, since=self._turn.now)
        self._failures.begin()
        if self._turn.stopping:  # the signal came while there was nothing to send it to
            self._command.signal(signal.SIGTERM)

    def _signal_to_service(self, event: Signalled) -> None:
        if event.signum in (signal.SIGTERM, signal.SIGINT) and self._service.signalled(
            event.signum, going_down=event.going_down
        ):
            self._service.stop()
            self._turn.exit(0)

    # --- due actions: the time has come, or every participant has answered ---

    def _watch(self, _: None = None) -> None:
        """Handle what is due in every state: checkpoints that upcoming notices ask for, and training that stands still."""
        self._delivery.ask_for_checkpoint()
        self._stall_response.watch()
        self._restarts.end_repeats()

    def _watch_and_end(self, _: None = None) -> None:
        """Watch, and end the command or the service if a signal has asked for that."""
        self._watch()
        if self.policy.command:
            self._signals.kill_if_forced()
        else:
            self._end_service_if_over()

    def _rehearse(self, _: None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.advance_rehearsal(p)
        self._watch_and_end()

    def _save_with_command(self, _: None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.await_return(p)
        self._watch_and_end()
        if p is not None and self._command.running:
            self._shutdown.advance(p)

    def _serve(self, _: None) -> None:
        if (p := self._delivery.active) is not None:
            self._delivery.await_return(p)
            self._service.advance(p)
        self._end_service_if_over()

    def _end_service_if_over(self) -> None:
        if self._service.over:
            self._service.stop()
            self._turn.exit(0)

    def _clear(self, _: None) -> None:
        """Handle the state after the command's end."""
        p, command = self._delivery.active, self._command.current
        if p is not None and p.rehearsal:
            self._delivery.advance_rehearsal(p)
        elif p is not None:
            self._delivery.await_return(p)
        self._watch()
        if command is not None and not (
            self._may_be_told(command) and self._turn.now < command.ended_at + LINGER
        ):
            self._turn.do(*map(Publish, self._launchers.end()))
            self._restarts.conclude(command)
        self._restarts.end_wait()

    def _may_be_told(self, command: Command) -> bool:
        """Return whether last messages of the ended command may be on their way."""
        return bool(self._launchers) or (
            command.returncode != 0 and any(each.pid == command.pid for each in self._sessions.open.values())
        )

    def _wait(self, _: None) -> None:
        self._watch()
        self._restarts.end_wait()


_Handler = Callable[[Machine, Any], None]

#: Events that do the same in every state.
_ALWAYS: dict[type[Any], _Handler] = {
    NoticeSeen: lambda m, e: m._delivery.seen(e.notice),
    NoticeGone: lambda m, e: m._delivery.withdrawn(e.id),
    Opened: lambda m, e: m._answers.opened(e),
    Heard: lambda m, e: m._answers.heard(e),
    Closed: lambda m, e: m._answers.closed(e),
    Asked: lambda m, e: m._delivery.asked(e),
    MachineSeen: lambda m, e: m._answers.machine(e),
    ProcessSeen: lambda m, e: m._answers.process(e),
    Watching: lambda m, e: m._sessions.watching.add(e.session),
    Launched: Machine._launched,
    Verified: lambda m, e: m.verification.ended(e),
    CommandEnded: lambda m, e: m._command.ended(e),
    GroupSeen: lambda m, e: m._command.group_seen(e),
}


#: The same, and what a signal does while the command runs.
_RUNNING: dict[type[Any], _Handler] = {
    **_ALWAYS,
    Signalled: lambda m, e: m._signals.received(e.signum, unhandled=e.unhandled),
}

#: The handlers of `spotguard run`, by state and event. NoneType: a due action, without an event.
COMMAND: dict[MachineState, dict[type[Any], _Handler]] = {
    MachineState.WATCHING: {**_RUNNING, NoneType: Machine._watch_and_end},
    MachineState.REHEARSING: {**_RUNNING, NoneType: Machine._rehearse},
    MachineState.SAVING: {**_RUNNING, NoneType: Machine._save_with_command},
    MachineState.ENDING: {**_RUNNING, NoneType: Machine._save_with_command},
    MachineState.CLEARING: {**_RUNNING, NoneType: Machine._clear},
    MachineState.WAITING: {
        **_ALWAYS,
        Signalled: lambda m, e: m._signals.between_starts(e.signum),
        NoneType: Machine._wait,
    },
    MachineState.FINISHED: {},
}

_SERVING: dict[type[Any], _Handler] = {**_ALWAYS, Signalled: Machine._signal_to_service}

#: The handlers of `spotguard agent`, by state and event.
SERVICE: dict[MachineState, dict[type[Any], _Handler]] = {
    MachineState.WATCHING: {**_SERVING, NoneType: Machine._watch_and_end},
    MachineState.REHEARSING: {**_SERVING, NoneType: Machine._rehearse},
    MachineState.SAVING: {**_SERVING, NoneType: Machine._serve},
    MachineState.SERVED: {**_SERVING, NoneType: Machine._serve},
    MachineState.FINISHED: {},
}
