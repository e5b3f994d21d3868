"""The helper's process: one loop over the agent's lines and the kernel's log; everything that may take long is elsewhere.

It ends when its stdin ends. If the agent had not said so before, the agent has been killed, and that is an incident too. It
then finishes within limits: messages, the operator's command, records.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..agent.config.options import FAILURE_FACTS
from ..agent.process.memory.kills import DEFAULT, VARIABLE
from ..agent.process.shell_command import ShellCommand
from ..agent.telemetry import logs
from ..hooks.consensus.topology import machine_id, this_machine
from ..providers.clock import Clock, SystemClock
from ..providers.text import TEXT, clip
from .agent_pipes import AgentLines, AgentReports
from .evaluation import OPPOSITES, Alert, Evaluation
from .readings.host import Reading
from .readings.kernel_log import KernelLog
from .readings.machine import MachineReadings
from .receivers import Origin, Receiver, as_json, ended_alert, labels_of
from .records.failure_record import diagnosed, job_of, needs_record
from .records.sent_alerts import SentAlerts
from .records.writer import PATIENCE, StoreProcesses
from .rule_file import default_rules, read_rules

if TYPE_CHECKING:  # 10 MiB, which rules alone do not need
    from .sender import AlertSender

log = logging.getLogger("spotguard.agent")

#: Seconds between two looks at what is not on a descriptor: alerts whose time is over, writers of records.
_TICK = 5.0
#: Seconds between two messages to Alertmanager about what fires.
_AGAIN = 60.0
#: Seconds between two looks at what earlier agents have left open: their incidents last an hour.
_LOOK_BACK = 3600.0
#: Seconds at the end: for messages, and for the operator's command, which has as much at any time.
_LAST_MESSAGES, _OF_COMMAND = 10.0, 60.0
#: Seconds before a failure whose lines in the kernel's log count as its evidence.
_BEFORE = 30.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}


class AlertProcess:
    """The helper's loop.

    Args:
        begin: the agent's first line (`agent.app`).
        clock: the clock.
        report: takes each report for the agent, as plain JSON.
    """

    def __init__(
        self, begin: Mapping[str, Any], clock: Clock, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._run_id = str(begin.get("run_id", ""))
        self._clock = clock
        self._report_to = report
        path = begin.get("rules")
        rules = read_rules(path) if path else default_rules()
        if begin.get("command") == "agent":  # a service is meant to run for ever
            rules = tuple(rule for rule in rules if rule.name != "too-long" or rule not in default_rules())
        self._evaluation = Evaluation(rules)
        self._origin = Origin(socket.gethostname(), self._run_id)
        self._kernel_log = KernelLog(os.environ.get(VARIABLE, DEFAULT))
        self._machine = MachineReadings([*_local(begin)], clock)
        self._records = StoreProcesses(clock)
        #: Alerts that people were sent. A service has no credentials for the stores of its runs.
        here = machine_id(this_machine(str(begin.get("socket") or "")))
        self._sent = SentAlerts(self._origin.host, here, self._records.start)
        self._remembers = begin.get("command") != "agent"
        self._know(self._run_id, begin.get("store"))
        self._accepted: SimpleQueue[Alert] = SimpleQueue()
        self._senders = []
        if begin.get("webhooks"):
            from .sender import AlertSender  # 10 MiB, which rules alone do not need

            receivers = map(Receiver.of, begin["webhooks"])
            self._senders = [
                AlertSender(
                    receiver, self._origin, clock, self._accept if receiver.for_people else lambda _: None
                )
                for receiver in receivers
            ]
        command = begin.get("on_failure")
        self._command = (
            ShellCommand("--on-failure", command, clock, lambda: None, outlived=True) if command else None
        )
        self._findings: Counter[str] = Counter(xid=0, oom=0, disk=0, **{"machine-check": 0})
        self._again_at, self._look_back_at = (clock.monotonic() + each for each in (_AGAIN, _LOOK_BACK))
        self._reported: Any = None
        #: The runs that have trained under this agent, and whether their rank 0 has.
        self._trained: dict[str, bool] = {}
        #: Whether the agent has said that it ends.
        self._ends = False
        if self._kernel_log.closed:
            log.debug("the helper of alerts does not read the kernel's log: %s", self._kernel_log.closed)

    @property
    def kernel_log(self) -> int:
        """The kernel log's descriptor to poll; below 0 if it is not open, or if `tick` reads it."""
        return self._kernel_log.poll_fd

    def close_kernel_log(self) -> None:
        self._kernel_log.close()

    # --- what comes in ---

    def take(self, line: Mapping[str, Any]) -> None:
        """Handle a line of the agent's."""
        now = self._clock.monotonic()
        if line.get("type") == "sample":
            own = [*self._read()]
            names = {name for name, _, _ in own}
            agents = (each for each in line.get("values", ()) if each[0] not in names)
            self._handle(self._evaluation.sample([*agents, *own], now))
            self._report(own)
        elif line.get("type") == "incident":
            self._incident(str(line.get("kind")), line.get("facts") or {}, now)
        elif line.get("type") == "end":
            self._ends = True

    def _incident(self, kind: str, facts: Mapping[str, Any], now: float) -> None:
        facts = {
            "run_id": self._run_id,
            **{
                name: value
                for name, value in facts.items()
                if value is not None and (name != "run_id" or value)
            },
        }
        if kind == "failure":
            self.look()  # the kernel writes its lines before it ends the process
            facts = diagnosed(facts, (each for at, each in self._kernel_log.kept if at >= now - _BEFORE))
            if needs_record(facts):
                self._records.start(job_of(facts, self._clock.time()))
        self._know(str(facts["run_id"]), facts.get("store"))
        if kind == "training":
            self._end_earlier(str(facts["run_id"]), facts.get("rank") == 0)
        self._handle(self._evaluation.incident(kind, facts, now))
        self._report()

    def _end_earlier(self, run_id: str, first: bool) -> None:
        """End the alerts of agents before this one, as the run, or its rank 0, trains for the first time under this one."""
        known = self._trained.get(run_id)
        if known is not None and known >= first:
            return
        self._trained[run_id] = first
        rules = self._evaluation.ended_by("training")
        for sender in self._senders:
            if rules and known is None and not sender.receiver.for_people:
                sender.end_earlier(run_id, rules)
        if self._people:
            self._sent.end_earlier(run_id, OPPOSITES["training"], self._end_recorded, every=first)

    def _end_recorded(self, records: Iterable[Mapping[str, Any]]) -> None:
        now, wall = self._clock.monotonic(), self._clock.time()
        for alert in [ended_alert(each, now, wall) for each in records]:
            log.info("alert %s of an earlier agent is over: %s", alert.rule.name, alert.summary)
            for sender in self._people:
                sender.offer([alert])

    @property
    def _people(self) -> list[AlertSender]:
        return [sender for sender in self._senders if sender.receiver.for_people]

    # --- what people were sent ---

    def _know(self, run_id: str, store: object) -> None:
        if store and self._remembers:
            self._sent.know(run_id, str(store))

    def _accept(self, alerts: Iterable[Alert]) -> None:
        """Take in what a receiver has taken. The threads of senders call it."""
        for alert in alerts:
            self._accepted.put(alert)

    def _record_sent(self) -> None:
        """Record what receivers have taken since the last call."""
        offset = self._clock.time() - self._clock.monotonic()
        messages = []
        while not self._accepted.empty():
            alert = self._accepted.get()
            plain = as_json(alert, self._origin, lambda at: at + offset)
            until = None if alert.until is None else alert.until + offset
            messages.append({**plain, "incident": alert.rule.incident, "until": until})
        self._sent.sent(messages)

    def look(self) -> None:
        """Read the kernel's log."""
        now = self._clock.monotonic()
        for finding in self._kernel_log.read(now):
            self._findings[finding.kind] += 1
            self._incident("kernel", finding.facts(), now)

    def tick(self) -> None:
        """Do what is due although nothing comes in."""
        now = self._clock.monotonic()
        if self._kernel_log.is_file:
            self.look()
        self._handle(self._evaluation.expire(now))
        self._record_sent()
        self._records.busy()
        if now >= self._look_back_at:
            self._look_back_at = now + _LOOK_BACK
            self._sent.look_back()
        if now >= self._again_at:
            self._again_at = now + _AGAIN
            if firing := self._evaluation.firing:
                for sender in self._senders:
                    if not sender.receiver.for_people:
                        sender.offer(firing)

    def _read(self) -> Iterator[Reading]:
        yield from self._machine.read()
        for kind, number in self._findings.items():
            yield "spotguard_kernel_errors_total", (kind,), float(number)
        for sender in self._senders:
            for result, number in sender.counts.items():
                yield "spotguard_alert_messages_total", (sender.receiver.name, result), float(number)

    # --- what goes out ---

    def _handle(self, alerts: Iterable[Alert], over: str = "is over") -> None:
        for alert in alerts:
            actions = alert.rule.actions
            if "log" in actions and alert.ended is None:
                log.log(_LEVELS[alert.rule.severity], "alert %s: %s", alert.rule.name, alert.summary)
            elif "log" in actions:
                log.info("alert %s %s: %s", alert.rule.name, over, alert.summary)
            if "webhook" in actions:
                for sender in self._senders:
                    sender.offer([alert])
            if "command" in actions and alert.ended is None and self._command is not None:
                self._run_command(self._command, alert)

    def _run_command(self, command: ShellCommand, alert: Alert) -> None:
        facts = {
            **alert.facts,
            "alert": alert.rule.name,
            "severity": alert.rule.severity,
            "summary": alert.summary,
        }
        values = (
            facts.get("class", alert.rule.name),
            facts.get("step", ""),
            facts.get("run_id", self._run_id),
        )
        given = {name: clip(str(value), TEXT) for name, value in zip(FAILURE_FACTS, values, strict=True)}
        body = json.dumps({**facts, "labels": labels_of(alert, self._origin)}).encode() + b"\n"
        until = self._clock.monotonic() + _OF_COMMAND
        command.start(alert.rule.name, {**os.environ, **given}, until, body)

    def _report(self, readings: Iterable[Reading] | None = None) -> None:
        firing = [
            {
                "alert": alert.rule.name,
                "severity": alert.rule.severity,
                "summary": alert.summary,
                "for_seconds": round(self._clock.monotonic() - alert.began, 1),
            }
            for alert in self._evaluation.firing
        ]
        if readings is not None:
            self._reported = [[name, list(labels), value] for name, labels, value in readings]
        readings, hanging = self._reported or [], self._machine.hanging
        self._report_to({"firing": firing, "readings": readings, "hanging": hanging})

    # --- the end ---

    def _report_busy(self) -> None:
        """Report for how long the agent should wait: as long as this says, and else it takes the helper for one that hangs."""
        works = self._command is not None and self._command.busy
        self._report_to(
            {"busy": _OF_COMMAND if works else PATIENCE if self._records.busy() else _LAST_MESSAGES}
        )

    def close(self) -> None:
        """Finish what was begun, within limits."""
        now = self._clock.monotonic()
        if not self._ends:
            log.error(
                "the agent of run %s is gone without a word: nothing watches for notices [SG113]",
                self._run_id,
            )
            self._incident("agent-lost", {}, now)
        self._handle(
            self._evaluation.close(now, ended=self._ends), over="ends with the agent, which evaluates it"
        )
        self._report_busy()
        never = threading.Event()
        while self._records.busy():  # what they find may have to be sent
            self._clock.wait(never, 0.05)
        now = self._clock.monotonic()
        for sender in self._senders:
            sender.close(now + _LAST_MESSAGES)
        self._record_sent()
        self._report_busy()
        while self._records.busy() or (self._command is not None and self._command.busy):
            self._clock.wait(never, 0.05)  # both have limits of their own
        self._records.close()
        if self._command is not None:
            self._command.close()
        self._kernel_log.close()


def _local(begin: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and paths of the folders of this machine that a run writes to."""
    parts = urlsplit(str(begin.get("store") or ""))
    if parts.scheme == "file":
        yield "store", unquote(parts.path)
    if begin.get("stage"):
        yield "stage", str(begin["stage"])
    with suppress(FileNotFoundError):  # it is gone
        yield "working directory", os.getcwd()
    yield "temporary directory", tempfile.gettempdir()
    yield "/dev/shm", "/dev/shm"


def main(stdin: int = 0, stdout: int = 1) -> int:
    """Run the helper until its stdin ends."""
    # Its agent decides when it ends: a launcher's SIGTERM or a Ctrl-C reaches the agent, which may have more to tell then. A
    # handler, because a command that is started would inherit an ignored signal.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)
    os.set_blocking(stdout, False)
    lines = AgentLines(stdin)
    while not (begun := lines.read()) and not lines.ended:
        pass
    if not begun or begun[0].get("type") != "begin":
        print(
            "spotguard.alerts is a part of spotguard run and spotguard agent, which start it", file=sys.stderr
        )
        return 2
    begin = begun[0]
    level = logging.getLevelNamesMapping()[str(begin.get("log_level", "info")).upper()]
    logs.configure(json_log=bool(begin.get("json_log")), level=level)
    process = AlertProcess(begin, SystemClock(), AgentReports(stdout).write)
    poll = select.poll()
    poll.register(stdin, select.POLLIN)
    if process.kernel_log >= 0:
        poll.register(process.kernel_log, select.POLLIN)
    arrived = begun[1:]
    while True:
        for line in arrived:
            _guarded(process.take, line)
        _guarded(process.tick)
        if lines.ended:
            break
        ready = dict(poll.poll(_TICK * 1000))
        if process.kernel_log in ready:
            _guarded(process.look)
            if not ready[process.kernel_log] & select.POLLIN:  # no writer is left: it would be ready for ever
                poll.unregister(process.kernel_log)
                process.close_kernel_log()
        arrived = lines.read() if stdin in ready else []
    _guarded(process.close)
    logs.flush()
    return 0


def _guarded(work: Callable[..., None], *arguments: Any) -> None:
    """Do the work. A mistake in it must cost one line of the agent's, and not the helper."""
    try:
        work(*arguments)
    except Exception:
        log.exception("an error of the helper of alerts")
