"""The helper's process: one loop over the agent's lines, the kernel's log and the readings; what may take long is elsewhere.

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
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..agent.config.options import FAILURE_FACTS
from ..agent.process.memory.kills import DEFAULT, VARIABLE
from ..agent.process.shell_command import ShellCommand
from ..agent.telemetry import logs
from ..providers.clock import Clock, SystemClock
from ..providers.text import TEXT, clip
from .agent_pipes import AgentLines, AgentReports
from .incidents import KINDS, Incident, Incidents
from .readings.host import Reading
from .readings.kernel_log import KernelLog
from .readings.machine import MachineReadings
from .receivers import Origin, Receiver, labels_of
from .records.failure_record import diagnosed, job_of, needs_record
from .records.writer import PATIENCE, StoreProcesses

if TYPE_CHECKING:  # 10 MiB, which a helper without receivers does not need
    from .sender import IncidentSender

log = logging.getLogger("spotguard.agent")

#: Seconds between two looks at what is not on a descriptor: incidents whose time is over, writers of records.
_TICK = 5.0
#: Seconds between two readings of the machine, as Prometheus scrapes.
_READ_EVERY = 10.0
#: Seconds between two messages to Alertmanager about what lasts.
_AGAIN = 60.0
#: A disk is full below this free share: a checkpoint's next file may be what no longer fits.
_FULL = 0.05
#: By counter: the incident of its rise, the label, and the least rise. A clock that is a few seconds off harms nothing: stores refuse
#: signatures that are 5 to 15 minutes off.
_COUNTED = {
    "spotguard_gpu_ecc_errors_total": ("gpu-memory-error", "gpu", 0.0),
    "spotguard_clock_step_seconds_total": ("clock-jump", "direction", 5.0),
}
#: Seconds at the end: for messages, and for the operator's command, which has as much at any time.
_LAST_MESSAGES, _OF_COMMAND = 10.0, 60.0
#: Seconds before a failure whose lines in the kernel's log count as its evidence.
_BEFORE = 30.0
_LEVELS = {"warning": logging.WARNING, "critical": logging.ERROR}


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
        self._incidents = Incidents()
        self._origin = Origin(socket.gethostname(), self._run_id)
        self._kernel_log = KernelLog(os.environ.get(VARIABLE, DEFAULT))
        self._machine = MachineReadings([*_local(begin)], clock)
        self._records = StoreProcesses(clock)
        self._senders: list[IncidentSender] = []
        if begin.get("webhooks"):
            from .sender import IncidentSender  # 10 MiB, which a helper without receivers does not need

            receivers = map(Receiver.of, begin["webhooks"])
            self._senders = [IncidentSender(receiver, self._origin, clock) for receiver in receivers]
        command = begin.get("on_failure")
        self._command = (
            ShellCommand("--on-failure", command, clock, lambda: None, outlived=True) if command else None
        )
        self._findings: Counter[str] = Counter(xid=0, oom=0, disk=0, **{"machine-check": 0})
        self._again_at, self._read_at = (clock.monotonic() + each for each in (_AGAIN, _READ_EVERY))
        #: The newest readings; and the newest of the counters among them.
        self._readings: list[Reading] = []
        self._counts: dict[tuple[str, tuple[str, ...]], float] = {}
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
        if line.get("type") == "event":
            self._event(str(line.get("kind")), line.get("facts") or {}, self._clock.monotonic())
        elif line.get("type") == "end":
            self._ends = True

    def _event(self, kind: str, given: Mapping[str, Any], now: float) -> None:
        # An event of no known run is this helper's own.
        known = {name: value for name, value in given.items() if value is not None and value != ""}
        facts = {"run_id": self._run_id, **known}
        if kind == "failure":
            self.look()  # the kernel writes its lines before it ends the process
            facts = diagnosed(facts, (each for at, each in self._kernel_log.kept if at >= now - _BEFORE))
            if needs_record(facts):
                self._records.start(job_of(facts, self._clock.time()))
        self._handle(self._incidents.take(kind, facts, now))
        self._report()

    def look(self) -> None:
        """Read the kernel's log."""
        now = self._clock.monotonic()
        for finding in self._kernel_log.read(now):
            self._findings[finding.kind] += 1
            self._event("kernel", finding.facts(), now)

    def tick(self) -> None:
        """Do what is due although nothing comes in."""
        now = self._clock.monotonic()
        if self._kernel_log.is_file:
            self.look()
        if now >= self._read_at:
            self._read_at = now + _READ_EVERY
            self._readings = [*self._machine.read()]
            for kind, facts in self._found():
                self._handle(self._incidents.take(kind, {"run_id": self._run_id, **facts}, now))
            self._handle(self._incidents.tick(now))
            self._report()
        self._records.busy()
        if now >= self._again_at:
            self._again_at = now + _AGAIN
            for sender in self._senders:
                if not sender.receiver.for_people:
                    sender.offer(self._incidents.open)

    def _found(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what the newest readings tell of incidents that begin or are over."""
        for name, labels, value in self._readings:
            if name == "spotguard_disk_free_ratio" and labels[0] in ("store", "stage"):
                yield "disk-full", {"place": labels[0], "free": f"{value:.1%}", "over": value >= _FULL}
            elif name == "spotguard_gpu_up":
                yield "gpu-lost", {"gpu": labels[0], "over": value > 0}
            elif name in _COUNTED:
                kind, label, least = _COUNTED[name]
                rise = value - self._counts.get((name, labels), value)
                self._counts[name, labels] = value
                if rise > least:
                    yield kind, {label: labels[0], "rise": f"{rise:.0f}"}

    def _metrics(self) -> Iterator[Reading]:
        yield from self._readings
        for kind, number in self._findings.items():
            yield "spotguard_kernel_errors_total", (kind,), float(number)
        for sender in self._senders:
            for result, number in sender.counts.items():
                yield "spotguard_alert_messages_total", (sender.receiver.name, result), float(number)

    # --- what goes out ---

    def _handle(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            if KINDS[incident.name].logged and incident.ended is None:
                log.log(_LEVELS[incident.severity], "incident %s: %s", incident.name, incident.summary)
            elif KINDS[incident.name].logged:
                log.info("incident %s is over: %s", incident.name, incident.summary)
            for sender in self._senders:
                sender.offer([incident])
            if incident.name == "failure" and incident.ended is None and self._command is not None:
                self._run_command(self._command, incident)

    def _run_command(self, command: ShellCommand, incident: Incident) -> None:
        facts = incident.facts
        values = (facts.get("class", "unknown"), facts.get("step", ""), incident.run_id)
        given = {name: clip(str(value), TEXT) for name, value in zip(FAILURE_FACTS, values, strict=True)}
        about = {"incident": incident.name, "severity": incident.severity, "summary": incident.summary}
        body = {**facts, **about, "labels": labels_of(incident, self._origin)}
        until = self._clock.monotonic() + _OF_COMMAND
        command.start(incident.name, {**os.environ, **given}, until, json.dumps(body).encode() + b"\n")

    def _report(self) -> None:
        firing = [
            {
                "alert": incident.name,
                "severity": incident.severity,
                "summary": incident.summary,
                "for_seconds": round(self._clock.monotonic() - incident.began, 1),
            }
            for incident in self._incidents.open
        ]
        readings = [[name, list(labels), value] for name, labels, value in self._metrics()]
        self._report_to({"firing": firing, "readings": readings, "hanging": self._machine.hanging})

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
            self._event("agent-lost", {}, now)
        else:
            self._handle(self._incidents.close(now))
        self._report_busy()
        for sender in self._senders:
            sender.close(now + _LAST_MESSAGES)
        self._report_busy()
        never = threading.Event()
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
