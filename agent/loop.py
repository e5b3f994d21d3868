"""The agent's loop around one queue: every thread puts events in, and the loop carries out the actions that follow.

Nothing in this file decides: `core.machine` does. The loop waits on the queue only.
"""

from __future__ import annotations

import logging
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ..hooks.ipc.protocol import Answer
from ..providers.clock import Clock
from . import outcome as outcomes
from .actions import (
    Acknowledge,
    Action,
    Announce,
    ExcludeMachine,
    Finish,
    FollowMachines,
    KillGroup,
    Launch,
    Log,
    Look,
    LookAtProcess,
    PauseVerification,
    Publish,
    ReadStacks,
    RecordFailure,
    ReportEvent,
    Rest,
    Send,
    SignalGroup,
    SignalOrphans,
    SignalSession,
    StopVerification,
    Tell,
    Verify,
)
from .core.failures.memory import EVERY, MemoryWatch
from .core.machine import Machine
from .events import (
    Event,
    Launched,
    ProcessSeen,
    Signalled,
    StatusAsked,
)
from .ipc.heartbeats import Heartbeats
from .ipc.process_stat import may_run
from .ipc.server import Server
from .process.drain import drain
from .process.helpers.stall_recorder import StallRecorder
from .process.memory.counters import MemoryCounters
from .process.supervisor import CommandError, Supervisor
from .sources.feed import Feed
from .sources.poller import CHECK_EVERY
from .telemetry import systemd
from .telemetry.status import AgentFacts, answers, in_a_line, shortened

if TYPE_CHECKING:  # loaded only when an option requests them
    from .process.helpers.alert_helper import AlertHelper
    from .process.helpers.verifier import Verifier
    from .process.notice_hook import NoticeHook
    from .telemetry.exclude_file import Exclusion
    from .telemetry.metrics.recorder import MetricsRecorder

logger = logging.getLogger("spotguard.agent")

#: Seconds. A queue cannot wait for longer than 292 years (`threading.TIMEOUT_MAX`), and a peer may name any deadline.
_LONGEST_SLEEP = 3600.0
#: Seconds after an error of the agent until what was due is tried again.
_AGAIN = 1.0


@contextmanager
def _guarded(what: str) -> Iterator[None]:
    """Log an error of the agent, whose bugs must not leave the command unguarded: what follows is done all the same."""
    try:
        yield
    except CommandError:
        raise
    except Exception:
        logger.exception("an error of the agent in %s", what)


class Watches(Protocol):
    """Protocol of a `Poller` and of a `RemoteFeed`."""

    @property
    def alive(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self, timeout: float = 0.0) -> None: ...

    def acknowledge(self, notice_id: str) -> None: ...

    def check(self, now: float) -> None: ...


class Agent:
    """The loop, its pure machine, and the objects that carry out the machine's actions."""

    def __init__(
        self,
        machine: Machine,
        server: Server,
        clock: Clock,
        events: queue.SimpleQueue[Event],
        facts: AgentFacts,
        supervisor: Supervisor | None = None,
        notice_hook: NoticeHook | None = None,
        *,
        watches: Sequence[Watches] = (),
        manager: systemd.Manager = systemd.NOBODY,
        meter: MetricsRecorder | None = None,
        memory: MemoryCounters | None = None,
        alerts: AlertHelper | None = None,
        verifier: Verifier | None = None,
        heartbeats: Heartbeats | None = None,
        exclusions: Sequence[Exclusion] = (),
        stall_recorder: StallRecorder | None = None,
        orphan: int | None = None,
    ) -> None:
        self._machine = machine
        self._orphan = orphan
        self._watches = watches
        self._server = server
        self._clock = clock
        self._events = events
        self._facts = facts
        self._supervisor = supervisor
        self._notice_hook = notice_hook
        self._manager = manager
        self._metrics = meter
        self._alerts = alerts
        self._verifier = verifier
        self._heartbeats = heartbeats
        self._exclusions = exclusions
        self._stall_recorder = stall_recorder
        self._feed = Feed(facts.sources)
        self._outcomes = outcomes.OutcomeFiles(server.path)
        self._last: dict[str, Any] | None = None
        self._memory, self._memory_watch = memory, MemoryWatch()
        self._check_at = self._memory_at = 0.0
        self._again_at: float | None = None
        self._code: int | None = None
        self._until = 0.0

    def run(self) -> int:
        """Run until the machine requests `Finish`, and return the exit code."""
        with closing(self._outcomes):
            return self._run()

    def _run(self) -> int:
        with _guarded("the start of the helper of alerts"):
            if self._alerts is not None:
                self._alerts.start()
        actions = self._machine.begin(self._clock.monotonic(), self._orphan)
        self._server.departing = self._machine.departing
        self._carry_out(actions)
        self._manager.ready(self._clock.monotonic())
        while self._code is None:
            with _guarded("the report to systemd"):
                self._report()
            self._handle(self._next())
        self._manager.stopping()
        with _guarded("the wait for the last helpers"):
            drain(
                self._events,
                self._clock,
                failed=self._code != 0,
                until=self._until,
                notice_hook=self._notice_hook,
                alerts=self._alerts,
                stall_recorder=self._stall_recorder,
            )
        return self._code

    def _report(self) -> None:
        if self._lives:
            self._manager.live(self._clock.monotonic())
        self._manager.status(in_a_line(self._machine, self._feed))

    @property
    def _lives(self) -> bool:
        """Whether the server's thread and every poller's thread live.

        An agent without its socket or a source is of no use, so the service manager has to start it again.
        """
        return self._server.serves and all(watch.alive for watch in self._watches)

    def _next(self) -> Event | None:
        timeout: float | None = _AGAIN
        with _guarded("the time of what is due next"):
            timeout = self._timeout()
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None  # a timer of the machine or of the loop is due

    def _timeout(self) -> float | None:
        check = self._check_at if self._watches else None
        sign = self._manager.next_sign if self._lives else None
        memory = self._memory_at if self._memory is not None and self._machine.sessions else None
        beat = None if self._alerts is None else self._alerts.next_beat
        times = (self._machine.next_wake, self._again_at, self._feed.next_beat, check, sign, memory, beat)
        due = [t for t in times if t is not None]
        return min(max(0.0, min(due) - self._clock.monotonic()), _LONGEST_SLEEP) if due else None

    def _handle(self, event: Event | None) -> None:
        """Have the machine handle the event, and then everything beside it; an error in one leaves the others their turn."""
        now = self._clock.monotonic()
        if isinstance(event, Signalled) and event.signum == signal.SIGTERM and self._supervisor is None:
            with _guarded("the question whether the system goes down"):
                event = replace(event, going_down=systemd.going_down())
        self._advance(event, now)
        beside: tuple[Callable[[Event | None, float], None], ...] = (
            self._tell_followers,
            self._tell_helper,
            self._check,
            self._look_at_memory,
            self._answer,
            self._measure,
        )
        for each in beside:
            with _guarded(f"{type(event).__name__}, {each.__name__.strip('_')}"):
                each(event, now)

    def _advance(self, event: Event | None, now: float) -> None:
        """Have the machine handle the event, and carry out what follows."""
        actions, self._again_at = None, None
        with _guarded(type(event).__name__):
            actions = self._machine.handle(event, now)
        if actions is None:  # what was asked for before the error counts, and what was due is due again soon
            actions, self._again_at = self._machine.take(), now + _AGAIN
        self._server.departing = self._machine.departing  # before the server welcomes the next session
        self._carry_out(actions)

    def _tell_followers(self, event: Event | None, now: float) -> None:
        for followers, message in self._feed.take(event, now):
            self._server.send_all(followers, message)

    def _tell_helper(self, event: Event | None, now: float) -> None:
        if self._alerts is not None:
            self._alerts.take(event)
            self._alerts.beat(now)

    def _measure(self, event: Event | None, now: float) -> None:
        """Have the metrics show what the event has changed."""
        if self._metrics is not None:
            self._metrics.take(event, self._machine, now)
            if self._alerts is not None:
                self._metrics.helped(self._alerts.state)

    def _check(self, _: Event | None, now: float) -> None:
        """Report sources whose poll hangs; nothing else notices them."""
        if self._watches and now >= self._check_at:
            self._check_at = now + CHECK_EVERY
            for watch in self._watches:
                with _guarded("the check of a source"):
                    watch.check(now)

    def _look_at_memory(self, _: Event | None, now: float) -> None:
        """Have the machine answer memory that is about to end. Followers of this agent's feed look by themselves."""
        if self._memory is None or not self._machine.sessions or now < self._memory_at:
            return
        self._memory_at = now + EVERY
        reading = self._memory.reading()
        event = None if reading is None else self._memory_watch.hear(reading, now)
        if event is not None:
            self._advance(event, now)
            self._measure(event, now)

    def _answer(self, event: Event | None, now: float) -> None:
        if not isinstance(event, StatusAsked):
            return
        helper = None if self._alerts is None else self._alerts.state.status()
        pages = answers(self._machine, self._feed, self._facts, event.uid, now, self._last, helper)
        for page in pages:
            self._server.send(event.session, Answer(page, last=page is pages[-1]))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            # After an error, the actions behind it are still due: an exit code, or the kill at the reserve.
            with _guarded(type(action).__name__):
                self._do(action)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._server.send(action.session, action.message)
        elif isinstance(action, Log):
            logger.log(action.level, "%s", action.text)
        elif isinstance(action, Tell):
            body = {k: shortened(v) if k == "outcome" else v for k, v in action.body.items()}
            self._server.send(action.asker, Answer(body, last=action.last))
        elif isinstance(action, Publish):
            self._publish(action.outcome)
        elif isinstance(action, ReportEvent):
            with _guarded("a report to the helper of alerts"):
                if self._alerts is not None:
                    self._alerts.tell(action.kind, action.facts)
            # A helper of alerts that runs records a failure, with what the kernel's log adds.
            recorded = self._alerts is not None and self._alerts.busy
            if action.kind == "failure" and not recorded and self._stall_recorder is not None:
                self._stall_recorder.record(RecordFailure(action.facts))
        elif isinstance(action, ExcludeMachine):
            for exclusion in self._exclusions:
                with _guarded("the exclusion of a machine"):
                    exclusion.add(action.machine, action.kind, broken=action.broken)
        elif isinstance(action, Acknowledge):
            for watch in self._watches:
                with _guarded("an acknowledgement"):
                    watch.acknowledge(action.notice_id)
        elif isinstance(action, Finish):
            self._code, self._until = action.code, action.until
        elif isinstance(action, Announce):
            if self._notice_hook is not None:
                self._notice_hook.tell(action.notice, action.left, action.until)
        elif isinstance(action, SignalSession):
            self._server.signal(action.session, action.signum, action.group)
        elif isinstance(action, FollowMachines):
            if self._heartbeats is not None and action.machines is None:
                self._heartbeats.over(action.run)
            elif self._heartbeats is not None and action.machines is not None:
                self._heartbeats.watch(action.run, action.machines)
        elif isinstance(action, LookAtProcess):
            self._events.put(ProcessSeen(action.session, may_run(action.pid)))
        elif isinstance(action, ReadStacks):
            if self._stall_recorder is not None:
                self._stall_recorder.read(action)
        elif isinstance(action, RecordFailure):
            if self._stall_recorder is not None:
                self._stall_recorder.record(action)
        elif isinstance(action, Verify | StopVerification | PauseVerification):
            self._verify(action)
        elif self._supervisor is not None:
            self._command(action, self._supervisor)

    def _verify(self, action: Verify | StopVerification | PauseVerification) -> None:
        if self._verifier is None:
            return
        if isinstance(action, Verify):
            self._verifier.start(action)
        elif isinstance(action, PauseVerification):
            self._verifier.pause(action.paused)
        else:
            self._verifier.stop()

    def _command(
        self, action: SignalGroup | KillGroup | SignalOrphans | Look | Rest | Launch, supervisor: Supervisor
    ) -> None:
        if isinstance(action, SignalGroup):
            if action.passed_on:
                supervisor.pass_on(action.signum, action.trained)
            else:
                supervisor.signal(action.signum)
        elif isinstance(action, KillGroup):
            supervisor.kill()
        elif isinstance(action, SignalOrphans):
            supervisor.signal_orphans(action.signum, action.groups)
        elif isinstance(action, Rest):
            supervisor.rest()
        elif isinstance(action, Look):
            # Through the queue: the search takes time, and the loop handles the events that arrived meanwhile first.
            self._events.put(supervisor.look(action.orphaned))
        else:
            with _guarded("what the command is told"):
                self._prepare(action, supervisor)
            pid = supervisor.start()
            unwatched = (
                ""
                if self._watches
                else "; no notice source is watched: only SIGTERM and `spotguard drill` trigger a save"
            )
            logger.info("guarding pid %d as run %s%s", pid, self._facts.run_id, unwatched)
            self._advance(Launched(pid), self._clock.monotonic())
            self._server.listener.write_down(supervisor.record)
            if self._metrics is not None:
                self._metrics.launched(self._machine.restarts, action.failure)

    def _prepare(self, launch: Launch, supervisor: Supervisor) -> None:
        for gone, meet in launch.moves:
            if line := supervisor.move(gone, meet):
                logger.warning("%s", line)
        supervisor.hint(launch)
        if self._alerts is not None:
            self._alerts.tell("launch", {})

    def _publish(self, outcome: outcomes.Outcome) -> None:
        seen = outcomes.seen_time(outcome, self._clock.monotonic(), self._clock.time())
        record = outcome.record(seen)
        self._last = record
        outcomes.log(outcome, record)
        self._outcomes.add(record)
        with _guarded("the metrics of an outcome"):
            if self._metrics is not None:
                self._metrics.ended(record)
        if self._alerts is not None:
            facts = {name: value for name, value in record.items() if name != "sessions"}
            self._alerts.tell("outcome", {**facts, "failed": outcome.failed})
