"""Command lines of the operator's (`--on-notice`, `--on-failure`), run by a shell beside everything else.

Nothing waits for such a command. Each run of it has its own thread, process group and time limit, and is killed at that limit.
Its output goes to the log. Its success or failure changes nothing.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from ...providers.clock import Clock
from ...providers.text import TEXT, clip

logger = logging.getLogger("spotguard.agent")

#: Runs of one command at the same time. What calls for it comes one by one; more would mean a source gone wild.
_AT_ONCE = 4
#: Lines of one run that are logged.
_LINES = 200
#: Seconds that `close` waits for each thread after the kill.
_PATIENCE = 0.5
_LONGEST_SLEEP = 3600.0
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
        self._running: set[threading.Thread] = set()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

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
            thread = threading.Thread(
                target=self._run,
                args=(env, until, given),
                name=f"spotguard{self._option.removeprefix('-')}",
                daemon=True,
            )
            self._running.add(thread)
        thread.start()

    def close(self) -> None:
        """End the runs that are left."""
        os.eventfd_write(self._stop_fd, 1)
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(_PATIENCE)
        if not self.busy:  # else a thread still polls the descriptor, until this process ends
            os.close(self._stop_fd)

    # --- one thread for each run of the command ---

    def _run(self, env: Mapping[str, str], until: float, given: bytes) -> None:
        try:
            self._follow(self._start(env, given, until), until)
        except OSError as error:
            why = error.strerror or error
            logger.warning("%s %r cannot be run: %s [SG110]", self._option, self._command, why)
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())
            self._ended()

    def _start(self, env: Mapping[str, str], given: bytes, until: float) -> subprocess.Popen[bytes]:
        # A file in memory: a command that does not read must not block the writer, nor a large text.
        with open(os.memfd_create("spotguard-input"), "w+b") as stdin:
            stdin.write(given)
            stdin.seek(0)
            # A group of its own: Ctrl-C does not reach the command, and its children are killed with it.
            command = ["/bin/sh", "-c", self._command]
            watchdog = shutil.which("timeout") if self._outlived else None
            if watchdog is not None:
                left = max(0.0, until - self._clock.monotonic()) + _LATER
                command = [watchdog, "-s", "KILL", f"{left:.3f}", *command]
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                process_group=0,
            )

    def _follow(self, process: subprocess.Popen[bytes], until: float) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            os.set_blocking(output.fileno(), False)
            log = _OutputLines(self._option.removeprefix("--"))
            ended = self._listen(process.pid, output.fileno(), log, until)
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            # As PID 1 the agent reaps every child in another thread. The status of this one may be lost; it then counts as 0.
            code = process.wait()
            log.take(_read(output.fileno()))
            log.end()
        if not ended:
            logger.warning(
                "%s %r was killed: it had not ended in its time [SG110]", self._option, self._command
            )
        elif code:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            logger.warning("%s %r failed: %s [SG110]", self._option, self._command, how)
        else:
            logger.info("%s is done", self._option)

    def _listen(self, pid: int, output: int, log: _OutputLines, until: float) -> bool:
        """Log the command's output until the command ends (True), or until it must be killed (False)."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            for fd in (output, pidfd, self._stop_fd):
                poll.register(fd, select.POLLIN)
            while (left := until - self._clock.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(min(left, _LONGEST_SLEEP) * 1000)}
                if pidfd in ready:
                    return True
                if self._stop_fd in ready:
                    return False
                if output in ready:
                    data = _read(output)
                    log.take(data)
                    if not data:  # the command has closed its output, and goes on
                        poll.unregister(output)
            return False
        finally:
            os.close(pidfd)


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


def _read(fd: int) -> bytes:
    """Return the bytes in the pipe now; b"" if it is empty or closed."""
    try:
        return os.read(fd, 64 * 1024)
    except BlockingIOError:
        return b""
