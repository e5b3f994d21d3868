"""A process beside the agent, of spotguard's own or the operator's, and the thread that follows it to its end."""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ...providers.clock import Clock, SystemClock

logger = logging.getLogger("spotguard.agent")

#: Seconds from the kill of the process to the end of its thread.
_GRACE = 0.5
#: Bytes of output that are kept where nobody takes them as they come; those behind are dropped.
_KEPT = 4 * 1024 * 1024
#: Bytes of one read: a pipe holds no more.
_READ = 1024 * 1024
#: Seconds. No system call waits for longer than 24 days.
_LONGEST_SLEEP = 3600.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process.

    Attributes:
        returncode: as in `subprocess`.
        output, errors: what it has written to stdout, and to stderr where that is a pipe.
        killed: this agent has killed it, out of time or at its own end.
    """

    returncode: int
    output: bytes
    errors: bytes
    killed: bool


class Child:
    """A process that runs from its construction on. One thread calls it, and never waits.

    It has a process group of its own: Ctrl-C and the end of the command's group are for others, and a kill takes its children too.
    Its end is seen although its children hold its pipes.

    Args:
        command: the program and its arguments.
        ended: takes its end, on the thread that follows it.
        given: its standard input.
        env: its environment; None: this process's.
        errors: its stderr, as in `subprocess`; None: this process's.
        until: monotonic seconds at which it is killed; None: no limit.
        clock: the clock of `until`.
        output: takes its output as it comes, on that thread; None: its end has the output.
        name: the name of that thread.

    Raises:
        OSError: it cannot be started, or followed.
    """

    def __init__(
        self,
        command: Sequence[str],
        ended: Callable[[Ended], None],
        *,
        given: bytes = b"",
        env: Mapping[str, str] | None = None,
        errors: int | None = None,
        until: float | None = None,
        clock: Clock | None = None,
        output: Callable[[bytes], None] | None = None,
        name: str = "spotguard-helper",
    ) -> None:
        self._until, self._clock = math.inf if until is None else until, clock or SystemClock()
        self._ended = ended
        self._killed = False
        self._output, self._errors = bytearray(), bytearray()
        # A file in memory: a process that does not read must not block the writer.
        with open(os.memfd_create("spotguard-input"), "w+b") as stdin:
            stdin.write(given)
            stdin.seek(0)
            self._process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, env=env, process_group=0
            )
        pipes = (
            (self._process.stdout, output or _keeper(self._output)),
            (self._process.stderr, _keeper(self._errors)),
        )
        self._pipes = {pipe.fileno(): (pipe, take) for pipe, take in pipes if pipe is not None}
        for fd in self._pipes:
            os.set_blocking(fd, False)
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
        self._pidfd = -1
        try:
            # As PID 1 the agent reaps every child in another thread, and this one may be gone already.
            with suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._process.pid)
            self._thread.start()
        except (OSError, RuntimeError) as error:  # a limit of processes counts threads
            self.kill()
            self._close()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`; None while it runs."""
        return self._process.returncode

    @property
    def works(self) -> bool:
        """Whether it has not ended, or its end is still being taken."""
        return self._thread.is_alive()

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signum)

    def kill(self) -> None:
        """End the process at once, and its children with it."""
        if self._process.returncode is None:
            self._killed = True
        self.signal(signal.SIGKILL)

    def close(self, patience: float = 0.0) -> None:
        """Wait for its end. Kill it if it has not ended after `patience` seconds."""
        self._thread.join(patience)
        if self._thread.is_alive():
            self.kill()
            self._thread.join(_GRACE)

    # --- the thread that follows it ---

    def _follow(self) -> None:
        try:
            if not self._listen():
                self.kill()
            self._process.wait()
            for fd in self._pipes:
                self._take(fd)
        except Exception:  # whoever waits for the end must hear of it
            logger.exception("an error of the agent with the output of pid %d", self.pid)
            self.kill()
        returncode = self._close()
        self._ended(Ended(returncode, bytes(self._output), bytes(self._errors), self._killed))

    def _listen(self) -> bool:
        """Take the output until the process ends (True), or until it must be killed (False)."""
        poll, ended = select.poll(), self._pidfd < 0
        for fd in (*self._pipes, *([] if ended else [self._pidfd])):
            poll.register(fd, select.POLLIN)
        while not ended and (left := self._until - self._clock.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(min(left, _LONGEST_SLEEP) * 1000)}
            for fd in ready & self._pipes.keys():
                if not self._take(fd):  # it has closed its output, and goes on
                    poll.unregister(fd)
            ended = self._pidfd in ready
        return ended

    def _take(self, fd: int) -> bytes:
        """Take the bytes in the pipe now, if there are any."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return b""
        self._pipes[fd][1](data)
        return data

    def _close(self) -> int:
        returncode = self._process.wait()  # as PID 1 it may be lost, and then counts as 0
        for pipe, _ in self._pipes.values():
            pipe.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        return returncode


def _keeper(kept: bytearray) -> Callable[[bytes], None]:
    return lambda data: kept.extend(data[: _KEPT - len(kept)])
