"""The helper of alerts, as its agent holds it: a process of its own, started for `--webhook`, `--on-failure` or `--metrics-port`.

The helper (`spotguard.alerts`) has what an agent must not load: an HTTP client, GPU libraries, stores. It gets JSON lines on its
stdin: what it needs to begin, and what happens. It reports on its stdout which incidents last, and what it reads of the machine.
The agent never waits for it: a line that does not fit into the pipe waits here, and a line that has no room is dropped and
counted. A helper that ends is started again a few times, and its end harms nothing.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ....providers.clock import Clock
from ....providers.health import SEEING, STARTING, Health, Sight
from ...actions import STANDING
from ...events import Event, HealthChanged, HelperEnded, HelperReported, SourceGone

logger = logging.getLogger("spotguard.agent")

#: Seconds until the next start of a helper that has ended, one after the other. Then it stays ended.
_RESTARTS = (5.0, 30.0, 300.0)
#: Seconds that a helper lives until its earlier ends are forgotten.
_SOUND = 3600.0
#: Bytes that wait for a helper that does not read.
_ROOM = 256 * 1024
#: Bytes of the longest line of the helper's that is read.
_LONGEST = 256 * 1024
#: Seconds between two tries to hand over what waits.
_RETRY = 1.0
#: Seconds beyond those for which the helper says that it is busy; and those from the end of its stdin to its kill.
_MARGIN, _GRACE = 2.0, 0.5


@dataclass(frozen=True, slots=True)
class HelperState:
    """The helper as `status` and the metrics show it."""

    #: 0: it does not run.
    pid: int = 0
    #: How it ended the last time, as in `subprocess`; None: it has not.
    returncode: int | None = None
    starts: int = 0
    #: Lines that it did not take.
    dropped: int = 0
    #: Its newest report; empty before the first.
    report: Mapping[str, Any] | None = None

    def status(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return {
            "pid": self.pid,
            "returncode": self.returncode,
            "starts": self.starts,
            "dropped": self.dropped,
            "firing": list((self.report or {}).get("firing", ())),
            "hanging": list((self.report or {}).get("hanging", ())),
        }


class AlertHelper:
    """The helper. The loop's thread calls everything here; another thread reads what the helper reports.

    Args:
        begin: what the helper needs to begin, as plain JSON.
        post: takes the events.
        clock: the clock.
        command: the program to start, for tests.
    """

    def __init__(
        self,
        begin: Mapping[str, Any],
        post: Callable[[Event], None],
        clock: Clock,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "spotguard.alerts"),
    ) -> None:
        self._begin = _line("begin", begin)
        self._post = post
        self._clock = clock
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: deque[bytes] = deque()
        #: By kind, run and what it is about: the line of each event that still holds, which each new helper is told.
        self._standing: dict[tuple[str, object, object], bytes] = {}
        #: Whether a part of the first line that waits has been written.
        self._begun = False
        self._started_at = 0.0
        self._start_at: float | None = None
        self._ends = 0
        self._finishing = False
        #: Monotonic seconds until which it has last things to do, as it says at its end; 0: it has said nothing.
        self.busy_until = 0.0
        self.state = HelperState()

    # --- start, end, start again ---

    def start(self) -> None:
        """Start the helper. If that fails, log it: nothing depends on the helper."""
        now = self._clock.monotonic()
        self._started_at, self._start_at = now, None
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                # A group of its own: Ctrl-C is for the command, and what the agent sends to its group is, too.
                process_group=0,
            )
        except OSError as error:
            self._fail(f"cannot be started: {error.strerror or error}")
            return
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        try:
            threading.Thread(
                target=self._read, args=(process,), name="spotguard-alert-helper", daemon=True
            ).start()
        except RuntimeError as error:  # a pod's limit of processes counts threads, too
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            self._fail(f"cannot be started: {error}")
            return
        self._process = process
        self.state = self._with(pid=process.pid, starts=self.state.starts + 1)
        self._waiting.extendleft([*self._standing.values(), self._begin])
        self._write()

    def take(self, event: Event | None) -> None:
        """Handle an event that may come from the helper, or that it is told of."""
        if isinstance(event, HelperReported):
            self.reported(event)
        elif isinstance(event, HelperEnded):
            self.ended(event)
        elif isinstance(event, HealthChanged):
            self._sees(event.source, event.health)
        elif isinstance(event, SourceGone):
            self._sees(event.source, SEEING)

    def ended(self, event: HelperEnded) -> None:
        """Handle the helper's end: log it, and start the helper again later."""
        process = self._process
        if process is None or process.pid != event.pid:
            return
        self._let_go(process)
        self.state = self._with(pid=0, returncode=event.returncode, report=None)
        if not self._finishing:
            # A real-time signal has no name.
            name = next((each.name for each in signal.Signals if each == -event.returncode), "a signal")
            how = f"exit code {event.returncode}" if event.returncode >= 0 else name
            self._fail(f"has ended ({how})")

    def _fail(self, why: str) -> None:
        now = self._clock.monotonic()
        if now - self._started_at > _SOUND:
            self._ends = 0
        if self._ends < len(_RESTARTS):
            self._start_at = now + _RESTARTS[self._ends]
            then = f"it is started again in {_RESTARTS[self._ends]:.0f} s"
        else:
            self._waiting.clear()
            then = "it is not started again"
        self._ends += 1
        logger.error(
            "the helper of alerts %s: %s; training and notices do not depend on it [SG113]", why, then
        )

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        if self._begun:  # the rest of a line means nothing to the next helper
            self._waiting.popleft()
            self._begun = False
        if self._waiting and self._waiting[0] is self._begin:
            self._waiting.popleft()

    def finish(self) -> None:
        """Have the helper end, once it has read what waits. `busy` tells whether it has ended."""
        if not self._finishing:
            self._finishing, self._start_at = True, None
            self._waiting.append(_line("end", {}))  # without it, the helper takes the agent for killed
        self._write()

    @property
    def busy(self) -> bool:
        """Whether the helper lives."""
        return self._process is not None

    def close(self) -> None:
        """Kill a helper that does not end with its stdin either: it may have commands to end."""
        if (process := self._process) is not None:
            self._let_go(process)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()

    # --- what it is told ---

    def _sees(self, source: str, health: Health) -> None:
        facts = {"source": source, "over": health.seeing or health == STARTING, "text": _words(health)}
        self.tell("blind", facts)

    def tell(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Tell the helper what happened. Never blocks."""
        line, run_id = _line("event", {"kind": kind, "facts": facts}), facts.get("run_id")
        for key in [*self._standing]:
            if kind in STANDING[key[0]] and (kind == "launch" or key[1] == run_id):
                del self._standing[key]
        if kind in STANDING:
            about = (kind, run_id, facts.get("source", facts.get("rank")))
            self._standing.pop(about, None)
            if not facts.get("over"):
                self._standing[about] = line
        if self._process is not None or self._start_at is not None:
            self._put(line)

    def beat(self, now: float) -> None:
        """Do what is due: hand over what waits, start the helper again."""
        if self._start_at is not None and now >= self._start_at:
            self.start()
        else:
            self._write()

    @property
    def next_beat(self) -> float | None:
        """Monotonic seconds at which `beat` is due although no event comes."""
        if self._process is None:
            return self._start_at
        return self._clock.monotonic() + _RETRY if self._waiting else None

    def reported(self, event: HelperReported) -> None:
        """Take in a report of the helper."""
        if isinstance(busy := event.body.get("busy"), int | float):
            self.busy_until = self._clock.monotonic() + busy + _MARGIN
        else:
            self.state = self._with(report=event.body)

    def _put(self, line: bytes) -> None:
        if sum(map(len, self._waiting)) + len(line) > _ROOM and self._waiting:
            if not self.state.dropped:
                logger.warning("the helper of alerts does not read: its messages are dropped [SG113]")
            self.state = self._with(dropped=self.state.dropped + 1)
            return
        self._waiting.append(line)
        self._write()

    def _write(self) -> None:
        """Write as much as the pipe takes. A write never blocks, and its error means that the helper's end follows."""
        if (process := self._process) is None:
            return
        assert process.stdin is not None
        if process.stdin.closed:
            return
        try:
            while self._waiting:
                line = self._waiting[0]
                written = os.write(process.stdin.fileno(), line)
                if written < len(line):
                    self._waiting[0], self._begun = line[written:], True
                    return
                self._waiting.popleft()
                self._begun = False
        except OSError:  # BlockingIOError, too: the pipe is full
            return
        if self._finishing:
            process.stdin.close()

    def _with(self, **changes: Any) -> HelperState:
        fields = {name: getattr(self.state, name) for name in HelperState.__slots__}
        return HelperState(**{**fields, **changes})

    # --- the thread that reads ---

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            with os.fdopen(os.dup(process.stdout.fileno()), "rb") as reports:
                process.stdout.close()
                while line := reports.readline(_LONGEST):
                    with suppress(ValueError, RecursionError):
                        if isinstance(body := json.loads(line), dict):
                            self._post(HelperReported(body))
        except Exception:  # its end has to be seen, so that it is started again
            logger.exception("an error of the agent with the reports of the helper of alerts")
            process.kill()
        # As PID 1 the agent reaps every child in another thread. The status may be lost; it then counts as 0.
        self._post(HelperEnded(process.pid, process.wait()))


def _words(health: Health) -> str:
    reason = f" ({health.reason})" if health.sight is Sight.BLIND else ""
    return "; ".join(each for each in (f"{health.sight}{reason}", health.detail, health.advice) if each)


def _line(kind: str, body: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, **body}, separators=(",", ":")).encode() + b"\n"
