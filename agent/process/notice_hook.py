"""`--on-notice`: the operator's command, which runs beside everything else when a notice ends this machine.

No save waits for the command. Each run of the command has its own thread, process group and time limit, and the agent kills
it at that limit. Its output goes to the log. Its success or failure changes nothing.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from ...providers.clock import Clock
from ...providers.notice import Notice
from ...providers.text import TEXT, clip
from ..config.options import NOTICE_FACTS
from ..events import Event, NoticeHookEnded

logger = logging.getLogger("spotguard.agent")

#: Commands at the same time. Notices come one by one; more would mean a source gone wild.
_AT_ONCE = 4
#: Lines of one command that are logged.
_LINES = 200
#: Seconds that `close` waits for each thread after the kill.
_PATIENCE = 0.5
_LONGEST_SLEEP = 3600.0


def facts(notice: Notice, left: float) -> dict[str, str]:
    """Return the variables for the command's environment. The seconds are whole, because a shell computes with integers only."""
    values = (
        notice.id,
        str(notice.kind),
        str(notice.severity),
        notice.source,
        str(int(max(0.0, left))),
        notice.detail,
    )
    return {name: clip(value, TEXT) for name, value in zip(NOTICE_FACTS, values, strict=True)}


class NoticeHook:
    """The runner of the command. The loop's thread calls `tell` and `close`."""

    def __init__(
        self, command: str, env: Mapping[str, str], post: Callable[[Event], None], clock: Clock
    ) -> None:
        self._command = command
        self._env = env
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[threading.Thread] = set()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def busy(self) -> bool:
        with self._lock:
            return bool(self._running)

    def tell(self, notice: Notice, left: float, until: float) -> None:
        """Run the command with this notice's facts, and kill it at `until` (monotonic seconds). Never blocks."""
        with self._lock:
            if len(self._running) >= _AT_ONCE:
                logger.warning(
                    "--on-notice is not run for %s: it runs %d times already [SG110]", notice.id, _AT_ONCE
                )
                return
            env = {**self._env, **facts(notice, left)}
            thread = threading.Thread(
                target=self._run, args=(env, until), name="spotguard-notice-hook", daemon=True
            )
            self._running.add(thread)
        thread.start()

    def close(self) -> None:
        """End the commands that still run."""
        os.eventfd_write(self._stop_fd, 1)
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(_PATIENCE)
        if not self.busy:  # else a thread still polls the descriptor, until this process ends
            os.close(self._stop_fd)

    # --- one thread for each run of the command ---

    def _run(self, env: Mapping[str, str], until: float) -> None:
        try:
            self._follow(self._start(env), until)
        except OSError as error:
            logger.warning("--on-notice %r cannot be run: %s [SG110]", self._command, error.strerror or error)
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())
            self._post(NoticeHookEnded())

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # A group of its own: Ctrl-C does not reach the command, and its children are killed with it.
        return subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            process_group=0,
        )

    def _follow(self, process: subprocess.Popen[bytes], until: float) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            os.set_blocking(output.fileno(), False)
            log = _Lines()
            ended = self._listen(process.pid, output.fileno(), log, until)
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            # As PID 1 the agent reaps every child in another thread. The status of this one may be lost; it then counts as 0.
            code = process.wait()
            log.take(_read(output.fileno()))
            log.end()
        if not ended:
            logger.warning("--on-notice %r was killed: it had not ended in its time [SG110]", self._command)
        elif code:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            logger.warning("--on-notice %r failed: %s [SG110]", self._command, how)
        else:
            logger.info("--on-notice is done")

    def _listen(self, pid: int, output: int, log: _Lines, until: float) -> bool:
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


class _Lines:
    """Splits pieces of output into lines of the log."""

    def __init__(self) -> None:
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
            logger.info("on-notice: %s", clip(line.decode(errors="replace"), TEXT))
        elif self._count == _LINES + 1:
            logger.info("on-notice: more than %d lines: the rest is not logged", _LINES)


def _read(fd: int) -> bytes:
    """Return the bytes in the pipe now; b"" if it is empty or closed."""
    try:
        return os.read(fd, 64 * 1024)
    except BlockingIOError:
        return b""
