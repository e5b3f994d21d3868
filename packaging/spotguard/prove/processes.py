"""A command and all processes that it starts, in whatever group or session: started, listed and ended as one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotguard.agent.process import proctree
from spotguard.providers.clock import Clock

#: The last line of a traceback, with or without a rank before it. torchrun's own (ChildFailedError) only says that there was
#: another traceback, so it is excluded.
_RAISED = re.compile(r"(?:\[\w+\]: ?)?((?![\w.]*ChildFailedError)[\w.]+(?:Error|Exception|Warning)\b.*)")


class Processes:
    """The command's processes, found by a variable in their environment.

    Children inherit the variable, whatever process group or session they move to.

    Args:
        mark: the variable and its value. No other process may have it in its environment.
        console: the file for the output of the processes.
    """

    def __init__(self, mark: tuple[str, str], console: Path, clock: Clock) -> None:
        self.console = console
        #: Monotonic seconds, once the command has ended.
        self.ended_at: float | None = None
        self.returncode: int | None = None
        self._mark = "=".join(mark).encode()
        self._clock = clock
        #: The command's pidfd.
        self._handle = -1
        self._waiter: threading.Thread | None = None

    def start(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """Start the command.

        Raises:
            OSError: the command cannot be started.
        """
        # In a session of its own: Ctrl-C reaches only spotguard, which then ends the processes.
        with self.console.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._handle = os.pidfd_open(process.pid)
        name = f"waits-for-{process.pid}"
        self._waiter = threading.Thread(target=self._wait, args=(process,), name=name, daemon=True)
        self._waiter.start()

    @property
    def ended(self) -> bool:
        """Whether the command has ended; processes that it started may still run."""
        return self.ended_at is not None

    def tell(self, signum: signal.Signals) -> None:
        """Send a signal to the command alone."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(self._handle, signum)

    def tell_all(self, signum: signal.Signals) -> None:
        for pid in self.alive():
            self._signal(pid, signum)

    def end(self) -> int:
        """Send SIGKILL to all processes that still run, and return their number.

        The command is killed by its handle, because it may have no mark: it may have cleared its environment, or is just being
        started. The kernel sets the environment (`create_elf_tables`) after it closed the pipe by which `Popen` knows of the start.
        """
        killed: set[int] = set()
        while alive := self.alive() - killed:  # again: a process may have forked during the scan
            for pid in alive:
                self._signal(pid, signal.SIGKILL)
            killed |= alive
        self.tell(signal.SIGKILL)
        if self._waiter is not None:
            self._waiter.join()
            os.close(self._handle)
            self._handle, self._waiter = -1, None
        return len(killed)

    def last_words(self) -> str:
        """Return why the command failed: the console's last exception, else its last line that spotguard did not write."""
        lines = self.console.read_text(errors="replace").split("\n")
        raised = [match[1] for line in lines if (match := _RAISED.match(line))]
        own = [line.strip() for line in lines if line.strip(" \r=-*") and not line.startswith("spotguard ")]
        return next(iter([*raised[-1:], *own[-1:]]), "")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        self.returncode = process.wait()
        self.ended_at = self._clock.monotonic()

    def alive(self) -> set[int]:
        """Return the pids of all processes that still run."""
        return {pid for pid in proctree.pids() if proctree.is_marked(pid, self._mark)}

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        proctree.signal_checked(pid, signum, lambda: proctree.is_marked(pid, self._mark))
