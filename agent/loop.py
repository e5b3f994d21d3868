"""The agent itself: one queue, one loop. Events go in from every thread, actions come out and are carried out here.

Nothing in this file decides: `emergency` does. Nothing here waits but on the queue.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..hooks.protocol import Answer
from ..providers.clock import Clock, SystemClock
from ..providers.notice import NoticeSource
from . import journal, launchers, local, overdue, sources, systemd
from . import outcome as outcomes
from .actions import (
    Acknowledge,
    Action,
    Announce,
    Finish,
    KillGroup,
    Launch,
    Log,
    Look,
    Publish,
    Rest,
    Send,
    SignalGroup,
    SignalOrphans,
    SignalSession,
    Tell,
)
from .board import Board
from .chorus import Chorus
from .emergency import Machine, Policy
from .events import (
    Closed,
    Event,
    HealthChanged,
    Launched,
    NoticeGone,
    NoticeSeen,
    Signalled,
    SourceGone,
    StatusAsked,
    Watching,
)
from .exported import exported
from .relay import Relay
from .server import Server
from .signals import DECIDED, Signals
from .sockets import SERVICE_SOCKET, default_socket, is_socket
from .status import Facts, answers, in_a_line
from .supervisor import CommandError, Supervisor
from .watcher import Watcher

if TYPE_CHECKING:  # the table of options is the front door's
    from .config import Options
    from .herald import Herald

logger = logging.getLogger(__name__)

#: At the end a look that hangs on a silent network is not waited for: the exit code is.
_PATIENCE = 0.2
#: A queue cannot wait for longer than 292 years (`threading.TIMEOUT_MAX`), and a deadline may be anybody's word.
_LONGEST_SLEEP = 3600.0


class Watches(Protocol):
    """A `Watcher` or a `Relay`."""

    def start(self) -> None: ...

    def stop(self, timeout: float = 0.0) -> None: ...

    def acknowledge(self, notice_id: str) -> None: ...

    def check(self, now: float) -> None: ...


class Agent:
    """The loop's state: the pure machine and the hands that do what it says."""

    def __init__(
        self,
        machine: Machine,
        server: Server,
        clock: Clock,
        events: queue.SimpleQueue[Event],
        facts: Facts,
        supervisor: Supervisor | None = None,
        herald: Herald | None = None,
        *,
        watches: Sequence[Watches] = (),
        manager: systemd.Manager | None = None,
    ) -> None:
        self._machine = machine
        self._watches = watches
        self._server = server
        self._clock = clock
        self._events = events
        self._facts = facts
        self._supervisor = supervisor
        self._herald = herald
        self._manager = manager
        self._board = Board(facts.sources)
        self._last: dict[str, Any] | None = None
        self._check_at = 0.0
        self._code: int | None = None
        self._until = 0.0

    def run(self) -> int:
        """Until the machine says that it is over."""
        self._carry_out(self._machine.begin(self._clock.monotonic()))
        if self._manager is not None:
            self._manager.ready(self._clock.monotonic())
        while self._code is None:
            self._report()
            event = self._next()
            try:
                self._handle(event)
            except (CommandError, KeyboardInterrupt):
                raise
            except Exception:
                # A mistake of ours in one event must not cost the command its guard: what follows is still handled.
                logger.exception("an error of the agent in %s", type(event).__name__)
        if self._manager is not None:
            self._manager.stopping()
        self._hear_out()
        return self._code

    def _report(self) -> None:
        if self._manager is not None:
            self._manager.live(self._clock.monotonic())
            self._manager.status(in_a_line(self._machine, self._board))

    def _hear_out(self) -> None:
        """The operator's command has what is left of the window, unless somebody asks for the end."""
        while self._herald is not None and self._herald.busy:
            try:
                event = self._events.get(timeout=max(0.0, self._until - self._clock.monotonic()))
            except queue.Empty:
                return
            if isinstance(event, Signalled) and event.signum in DECIDED:
                return

    def _next(self) -> Event | None:
        times = [self._machine.next_wake, self._board.next_beat, self._check_at if self._watches else None]
        if self._manager is not None:
            times.append(self._manager.next_sign)
        due = [t for t in times if t is not None]
        timeout = min(max(0.0, min(due) - self._clock.monotonic()), _LONGEST_SLEEP) if due else None
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None  # the machine's own time has come, or ours

    def _handle(self, event: Event | None) -> None:
        now = self._clock.monotonic()
        if isinstance(event, Signalled) and event.signum == signal.SIGTERM and self._supervisor is None:
            event = replace(event, going_down=systemd.going_down())
        self._check(now)
        for watcher, message in self._board.beat(now):
            self._server.send(watcher, message)
        if isinstance(event, StatusAsked):
            self._answer(event, now)
            return
        if isinstance(event, Watching):
            for watcher, message in self._board.joined(event.session, now, severity=event.severity):
                self._server.send(watcher, message)
            self._carry_out(self._machine.handle(event, now))
            return
        if isinstance(event, NoticeSeen | NoticeGone | HealthChanged | SourceGone):
            for watcher, message in self._board.note(event, now):
                self._server.send(watcher, message)
        elif isinstance(event, Closed):
            self._board.left(event.session)
        actions = self._machine.handle(event, now)
        self._server.doomed = self._machine.doomed  # before anybody who registers from now on is welcomed
        self._carry_out(actions)

    def _check(self, now: float) -> None:
        """Of a look that hangs nobody says anything but us."""
        if self._watches and now >= self._check_at:
            self._check_at = now + overdue.EVERY
            for watch in self._watches:
                watch.check(now)

    def _answer(self, event: StatusAsked, now: float) -> None:
        pages = answers(self._machine, self._board, self._facts, event.uid, now, self._last)
        for page in pages:
            self._server.send(event.session, Answer(page, last=page is pages[-1]))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                self._do(action)
            except (CommandError, KeyboardInterrupt):
                raise
            except Exception:
                # What follows in the list is not the less due: an exit code, or the kill at the reserve.
                logger.exception("an error of the agent: %s failed", type(action).__name__)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._server.send(action.session, action.message)
        elif isinstance(action, Log):
            logger.log(action.level, "%s", action.text)
        elif isinstance(action, Tell):
            self._server.send(action.asker, Answer(action.body, last=action.last))
        elif isinstance(action, Publish):
            self._publish(action.outcome)
        elif isinstance(action, Acknowledge):
            for watch in self._watches:
                watch.acknowledge(action.notice_id)
        elif isinstance(action, Finish):
            self._code, self._until = action.code, action.until
        elif isinstance(action, Announce):
            if self._herald is not None:
                self._herald.tell(action.notice, action.left, action.until)
        elif isinstance(action, SignalSession):
            self._server.signal(action.session, action.signum, action.group)
        elif self._supervisor is not None:
            self._command(action, self._supervisor)

    def _command(
        self, action: SignalGroup | KillGroup | SignalOrphans | Look | Rest | Launch, supervisor: Supervisor
    ) -> None:
        if isinstance(action, SignalGroup):
            supervisor.signal(action.signum)
        elif isinstance(action, KillGroup):
            supervisor.kill()
        elif isinstance(action, SignalOrphans):
            supervisor.signal_orphans(action.signum, action.groups)
        elif isinstance(action, Rest):
            supervisor.rest()
        elif isinstance(action, Look):
            # To the queue: a look takes its time, and what has come meanwhile is heard before the next one.
            self._events.put(supervisor.look(action.orphaned))
        else:
            for gone, meet in action.moves:
                if (moved := launchers.moved(supervisor.command, gone, meet)) != supervisor.command:
                    supervisor.change(moved)
                    logger.warning(
                        "the rendezvous was on the machine that goes: it is on %s from now on", meet
                    )
            pid = supervisor.start()
            logger.info("guarding pid %d as run %s", pid, self._facts.run_id)
            self._carry_out(self._machine.handle(Launched(pid), self._clock.monotonic()))

    def _publish(self, outcome: outcomes.Outcome) -> None:
        seen = outcomes.seen_time(outcome, self._clock.monotonic(), self._clock.time())
        record = outcome.record(seen)
        self._last = record
        whole = outcome.committed is not None
        logger.log(
            logging.WARNING if whole else logging.ERROR,
            "%s",
            outcome.line(),
            extra={"fields": {"outcome": record}},
        )
        path = self._server.path
        try:
            outcomes.write(record, path.parent, path.stem)
        except OSError as error:  # the line above is then the record
            logger.error("the outcome cannot be written beside %s: %s", path, error.strerror)


def run(options: Options, command: Sequence[str], *, service_socket: Path = SERVICE_SOCKET) -> int:
    """Guard `command` until it ends, and return the code to exit with.

    Raises:
        UsageError: an option cannot be used, or the command cannot be started (`CommandError`, with its code).
    """
    policy = Policy(
        command=True,
        window=options.window,
        reserve=options.reserve,
        signal=options.signal,
        max_restarts=options.max_restarts,
        outlive=options.outlive,
        exit_code=options.exit_code,
        acknowledge=options.acknowledge,
    )
    path = (
        Path(options.socket) if options.socket else default_socket(options.run_id, os.environ, os.geteuid())
    )
    return _serve(options, policy, path, command, service_socket)


def serve(options: Options) -> int:
    """Watch for the whole machine until SIGTERM, and return the code to exit with."""
    path = Path(options.socket) if options.socket else SERVICE_SOCKET
    policy = Policy(
        command=False, window=options.window, reserve=options.reserve, acknowledge=options.acknowledge
    )
    return _serve(options, policy, path, None, None)


def _serve(
    options: Options, policy: Policy, path: Path, command: Sequence[str] | None, service_socket: Path | None
) -> int:
    clock, rng = SystemClock(), random.Random()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    post = events.put
    with ExitStack() as stack:
        stack.callback(journal.flush)  # last: what the front door says of our end comes after it
        stack.enter_context(Signals(post))  # first: a SIGTERM during start-up must not be lost
        manager = systemd.Manager.take(os.environ, os.getpid())  # before anybody copies the environment
        if manager is not None:
            stack.callback(manager.close)
        looked, said = sources.make(options, clock), local.make(options, clock)
        server = Server(path, post, clock, service=command is None)
        stack.callback(server.close)
        server.start()
        supervisor, env = None, dict(os.environ)
        if command is not None:
            env = exported(options, server.path, os.environ)
            env |= launchers.told(command, options.window, env)
            supervisor = Supervisor(command, env=env, post=post)
            stack.callback(supervisor.close)
        herald = _herald(options, env, post, clock)
        if herald is not None:
            stack.callback(herald.close)
        watches = _watches(
            options, looked, post, clock, rng, service_socket, {source.name for source in said}
        )
        watching = [*watches, *(Watcher(source, post, clock, rng) for source in said)]
        if command is None:
            names = [watch.name for watch in watching if isinstance(watch, Watcher)]
            nothing = "nothing (no cloud was named or found): only drills are heard"
            logger.info("serving at %s, watching %s", server.path, ", ".join(names) or nothing)
        for watch in watching:
            watch.start()
            stack.callback(watch.stop, _PATIENCE)
        run_id = options.run_id or path.stem
        # Who lets us watch the cloud for them asks how many of its sources we watch: what was said to us is none.
        facts = Facts(run_id, os.getpid(), str(server.path), command is None, clock.monotonic(), len(watches))
        machine = Machine(policy)
        agent = Agent(
            machine, server, clock, events, facts, supervisor, herald, watches=watching, manager=manager
        )
        return agent.run()


def _herald(
    options: Options, env: dict[str, str], post: Callable[[Event], None], clock: Clock
) -> Herald | None:
    if options.on_notice is None:
        return None
    from .herald import Herald  # now, and not at the notice: only bytes move then

    return Herald(options.on_notice, env, post, clock)


def _watches(
    options: Options,
    looked: Callable[[], list[NoticeSource]],
    post: Callable[[Event], None],
    clock: Clock,
    rng: random.Random,
    service_socket: Path | None,
    ours: Collection[str],
) -> list[Watches]:
    def own(post: Callable[[Event], None]) -> list[Watcher]:
        found = looked()
        chorus = Chorus(found[0].name) if len(found) > 1 else None
        return [Watcher(source, post, clock, rng, chorus) for source in found]

    # Who names an endpoint means that one, and who says `none` means none.
    relayed = service_socket is not None and options.provider != "none" and not options.metadata_endpoint
    if relayed and service_socket is not None and _there(service_socket):
        return [Relay(service_socket, post, clock, rng, own, ours=ours)]
    return list(own(post))


def _there(service_socket: Path) -> bool:
    try:
        return is_socket(service_socket)
    except PermissionError:
        folder = service_socket.parent
        logger.info("not in the group of %s, the service agent's: looking for notices here", folder)
        return False
