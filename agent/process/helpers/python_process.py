"""A Python process of spotguard's own beside the agent. A thread follows it, so that the loop never waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

#: Seconds from the kill of the process to the end of its thread.
_GRACE = 0.5


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


class PythonProcess:
    """A process that runs from its construction on. One thread calls it.

    It has a process group of its own: Ctrl-C and the end of the command's group are for others, and a kill takes its children too.

    Args:
        words: the interpreter's arguments.
        ended: takes its end, on the thread that follows it.
        given: its standard input.
        env: its environment; None: this process's.
        errors: its stderr, as in `subprocess`; None: this process's.
        patience: seconds until it is killed; None: no limit.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        ended: Callable[[Ended], None],
        *,
        given: bytes = b"",
        env: Mapping[str, str] | None = None,
        errors: int | None = None,
        patience: float | None = None,
    ) -> None:
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=None if env is None else dict(env),
            process_group=0,
        )
        self._thread = threading.Thread(
            target=self._follow, args=(given, ended, patience), name="spotguard-helper", daemon=True
        )
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

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

    def _follow(self, given: bytes, ended: Callable[[Ended], None], patience: float | None) -> None:
        try:
            output, errors = self._process.communicate(given, timeout=patience)
        except subprocess.TimeoutExpired:
            self.kill()
            output, errors = self._process.communicate()
        ended(Ended(self._process.returncode, output or b"", errors or b"", self._killed))
