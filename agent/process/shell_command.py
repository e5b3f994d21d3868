"""Command lines of the operator's (`--on-notice`, `--on-failure`), run by a shell beside everything else.

Nothing waits for such a command. Each run of it has its own thread, process group and time limit, and is killed at that limit.
Its output goes to the log. Its success or failure changes nothing.
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from ...providers.clock import Clock
from ...providers.text import TEXT, clip
from .child import Child, Ended

logger = logging.getLogger("spotguard.agent")

#: Runs of one command at the same time. What calls for it comes one by one; more would mean a source gone wild.
_AT_ONCE = 4
#: Lines of one run that are logged.
_LINES = 200
#: Seconds after the limit at which a command ends that nobody has killed.
_LATER = 1.0


class ShellCommand:
    """The runner of one command line. One thread calls `start` and `close`.

    Args:
        option: the option that has the command, such as "--on-notice", for the log.
        command: the command line.
        clock: the clock.
        ended: called after each run, on the run's thread.
        outlived: whether this process may be killed before the command's limit, which must hold all the same.
    """

    def __init__(
        self, option: str, command: str, clock: Clock, ended: Callable[[], None], *, outlived: bool = False
    ) -> None:
        self._outlived = outlived
        self._option = option
        self._command = command
        self._clock = clock
        self._ended = ended
        self._lock = threading.Lock()
        #: By number of the run.
        self._running: dict[int, Child] = {}
        self._runs = 0

    @property
    def busy(self) -> bool:
        with self._lock:
            return bool(self._running)

    def start(self, what: str, env: Mapping[str, str], until: float, given: bytes = b"") -> None:
        """Run the command, and kill it at `until` (monotonic seconds). Never blocks.

        Args:
            what: what calls for the command, for the log.
            env: the command's whole environment.
            until: monotonic seconds.
            given: the command's standard input.
        """
        with self._lock:
            if len(self._running) >= _AT_ONCE:
                logger.warning(
                    "%s is not run for %s: it runs %d times already [SG110]", self._option, what, _AT_ONCE
                )
                return
            self._runs += 1
            run, lines = self._runs, _OutputLines(self._option.removeprefix("--"))
            try:
                self._running[run] = Child(
                    self._words(until),
                    lambda ended: self._over(run, ended, lines),
                    given=given,
                    env=env,
                    errors=subprocess.STDOUT,
                    until=until,
                    clock=self._clock,
                    output=lines.take,
                    name=f"spotguard{self._option.removeprefix('-')}",
                )
                return
            except OSError as error:
                why = error.strerror or error
                logger.warning("%s %r cannot be run: %s [SG110]", self._option, self._command, why)
        self._ended()

    def close(self) -> None:
        """End the runs that are left."""
        with self._lock:
            running = [*self._running.values()]
        for child in running:
            child.kill()
        for child in running:
            child.close()

    def _words(self, until: float) -> list[str]:
        command = ["/bin/sh", "-c", self._command]
        watchdog = shutil.which("timeout") if self._outlived else None
        if watchdog is None:
            return command
        left = max(0.0, until - self._clock.monotonic()) + _LATER
        return [watchdog, "-s", "KILL", f"{left:.3f}", *command]

    # --- the thread that follows a run ---

    def _over(self, run: int, ended: Ended, lines: _OutputLines) -> None:
        lines.end()
        code = ended.returncode
        if ended.killed:
            logger.warning(
                "%s %r was killed: it had not ended in its time [SG110]", self._option, self._command
            )
        elif code:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            logger.warning("%s %r failed: %s [SG110]", self._option, self._command, how)
        else:
            logger.info("%s is done", self._option)
        with self._lock:
            del self._running[run]
        self._ended()


class _OutputLines:
    """Splits pieces of output into lines of the log, each after the option's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._count = 0

    def take(self, data: bytes) -> None:
        if self._count > _LINES:
            # The output is still read, or the command would block. Splitting it too would cost half as much again (`yes`).
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._say(line)
        if len(self._rest) > 4096:
            self.end()

    def end(self) -> None:
        if self._rest and self._count <= _LINES:
            self._say(self._rest)
        self._rest = b""

    def _say(self, line: bytes) -> None:
        self._count += 1
        if self._count <= _LINES:
            logger.info("%s: %s", self._name, clip(line.decode(errors="replace"), TEXT))
        elif self._count == _LINES + 1:
            logger.info("%s: more than %d lines: the rest is not logged", self._name, _LINES)
