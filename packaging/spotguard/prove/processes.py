"""A command and everything that it starts, wherever that moves to: started, looked at, and ended as one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotguard.providers.clock import Clock

#: The last line of a traceback, with a rank before it or not. torchrun's own says no more than that there was another.
_RAISED = re.compile(r"(?:\[\w+\]: ?)?((?![\w.]*ChildFailedError)[\w.]+(?:Error|Exception|Warning)\b.*)")


class Processes:
    """Known by a variable in their environment: children inherit it, whatever process group or session they move to.

    Args:
        mark: the variable and its value, in the environment of these and of nothing else.
        console: the file for whatever they print.
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
        """
        Raises:
            OSError: it cannot be started.
        """
        # Away from our terminal's session: a Ctrl-C is for us, who then end them.
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
        """Whether the command has, whatever it has left running."""
        return self.ended_at is not None

    def tell(self, signum: signal.Signals) -> None:
        """A signal to the command alone."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(self._handle, signum)

    def tell_all(self, signum: signal.Signals) -> None:
        for pid in self._alive():
            self._signal(pid, signum)

    def end(self) -> int:
        """SIGKILL to everything that still runs; how many processes that were.

        The command goes by its handle: one that is just being started, or has cleared its environment, has no mark. The kernel
        sets the environment (`create_elf_tables`) after it closed the pipe by which `Popen` knows of the start.
        """
        killed: set[int] = set()
        while found := self._alive() - killed:  # again: one may have forked while we looked
            for pid in found:
                self._signal(pid, signal.SIGKILL)
            killed |= found
        self.tell(signal.SIGKILL)
        if self._waiter is not None:
            self._waiter.join()
            os.close(self._handle)
            self._handle, self._waiter = -1, None
        return len(killed)

    def last_words(self) -> str:
        """Why the command failed: the last exception that the console shows, else the last line that spotguard did not write."""
        lines = self.console.read_text(errors="replace").split("\n")
        raised = [match[1] for line in lines if (match := _RAISED.match(line))]
        own = [line.strip() for line in lines if line.strip(" \r=-*") and not line.startswith("spotguard ")]
        return next(iter([*raised[-1:], *own[-1:]]), "")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        self.returncode = process.wait()
        self.ended_at = self._clock.monotonic()

    def _alive(self) -> set[int]:
        return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and self._is_mine(int(entry))}

    def _is_mine(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # gone meanwhile, or another user's
        return self._mark in environment.split(b"\0")

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return  # ended by itself
        try:
            if self._is_mine(pid):  # looked at again: the number may belong to somebody else by now
                signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            pass  # it ended by itself between the two lines: nobody is there to be told
        finally:
            os.close(handle)
