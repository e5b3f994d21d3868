"""Processes as a whole-path test holds them: typed to, listened to, waited for, and always ended.

Nothing here sleeps: a test waits for a line, or for the end of a process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

TIMEOUT = 180.0  # seconds: a net under a hung test, never something a passing test waits for
#: Seconds that a notice may be on its way, from the instant at which it is there to the training process, on a busy machine.
_ON_ITS_WAY = 20


def eventually(
    condition: Callable[[], object], what: str, timeout: float = TIMEOUT, *, pause: float = 0.01
) -> None:
    """Ask again until it is so, where nothing announces it; after a longer pause where the question costs more."""
    never, end = threading.Event(), time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {timeout} s"
        never.wait(pause)


def about(seconds: float) -> str:
    """Return the pattern of whole seconds that are left of so many, once a notice has been on its way."""
    return f"({'|'.join(str(int(seconds) - late) for late in range(_ON_ITS_WAY + 1))})"


class Lines:
    """What a pipe says, read by a thread of its own so that nobody is ever stopped by a full one."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        #: What the process said elsewhere, for whoever reads why a test failed.
        self.beside: Lines | None = None
        self._change = threading.Condition()
        self._data = bytearray()
        self._read_so_far = 0
        self._found: re.Match[str] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), 65536):
            with self._change:
                self._data += chunk
                self._change.notify_all()
        with self._change:
            self._ended = True
            self._change.notify_all()

    @property
    def data(self) -> bytes:
        """Every byte so far."""
        with self._change:
            return bytes(self._data)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def until(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        """Read on to the next line in which `pattern` is found, and past it.

        Raises:
            AssertionError: it did not come in time, or never will, because everybody who could say it is gone.
        """
        with self._change:
            self._change.wait_for(lambda: self._take(pattern) or self._ended, timeout)
            found, self._found = self._found, None
        beside = self.beside.text if self.beside is not None else ""
        assert found is not None, f"no {pattern!r} (ended: {self._ended}) in:\n{self.text}\nbeside:\n{beside}"
        return found

    def _take(self, pattern: str) -> bool:
        while (end := self._data.find(b"\n", self._read_so_far)) >= 0:
            line = self._data[self._read_so_far : end].decode()
            self._read_so_far = end + 1
            if (found := re.search(pattern, line)) is not None:
                self._found = found
                return True
        return False

    def to_the_end(self, timeout: float = TIMEOUT) -> str:
        """Everything, once everybody who could write is gone."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"somebody still holds the pipe after:\n{self.text}"
        return self.text

    def close(self) -> None:
        self._thread.join(TIMEOUT)
        self._pipe.close()


class Running:
    """A process of the test, with its three pipes."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: no terminal of whoever runs the tests is within reach.
        self._popen = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.pid = self._popen.pid
        self.out, self.err = Lines(self._popen.stdout), Lines(self._popen.stderr)
        self.out.beside, self.err.beside = self.err, self.out

    def say(self, line: str) -> None:
        """One line to its stdin, which is the guarded command's too."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def hush(self) -> None:
        """Nothing more comes on stdin."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def send(self, signum: int) -> None:
        self._popen.send_signal(signum)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def ended(self, timeout: float = TIMEOUT) -> int:
        """Its exit code, as `subprocess` has it."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout} s:\n{self.out.text}{self.err.text}") from None

    def close(self) -> None:
        if self.running:
            self.kill()
        self._popen.wait(TIMEOUT)
        assert self._popen.stdin is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # what it did not read before it ended is lost, as it should
            self._popen.stdin.close()
        self.out.close()
        self.err.close()

    def account(self) -> str:
        """What it was and all that it said."""
        words = f"{self._popen.args!r} ended with {self._popen.returncode}"
        return f"{words}\n--- stdout\n{self.out.text}--- stderr\n{self.err.text}"


def removed(top: Path) -> bool:
    """Remove a tree of control groups; False while a process that was killed has not ended yet."""
    try:
        for path in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
            path.rmdir()
        top.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
