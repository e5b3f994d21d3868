"""The end of a machine, as one process on it sees it: ACPI's power button, and then the power cut.

At the button the operating system stops its services: the process gets SIGTERM. At the end nothing runs any more: the
process and all its descendants get SIGKILL.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ..clock import Clock
from ..errors import UsageError


class Power:
    """The power of a simulated machine, for one process.

    It holds the process by its pidfd, so that a later process with the same pid gets no signal.

    Args:
        pid: the process.
        clock: times the button and the end.
        tell: takes one line for each event.

    Raises:
        UsageError: there is no such process, or it belongs to another user.
    """

    def __init__(self, pid: int, clock: Clock, tell: Callable[[str], None]) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
            signal.pidfd_send_signal(self._pidfd, 0)
        except OSError as error:
            raise UsageError(f"pid {pid}: cannot be signalled: {error.strerror}") from error
        self._pid = pid
        self._clock = clock
        self._tell = tell
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def press(self, button: float, end: float) -> None:
        """Press the button in `button` seconds, and cut the power in `end` seconds, both from now."""
        now = self._clock.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(now + button, now + end), name="simulator power"
        )
        self._thread.start()

    def close(self) -> None:
        """Release the process: it gets no more signals."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _run(self, button: float, end: float) -> None:
        for at, act in ((button, self._term), (end, self._kill)):
            if self._clock.wait(self._over, at - self._clock.monotonic()):
                return
            with suppress(ProcessLookupError):  # the process has ended by itself, as it should
                act()

    def _term(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        self._tell(f"ACPI's power button: SIGTERM to pid {self._pid}")

    def _kill(self) -> None:
        below = list(_descendants(self._pid))  # before the kill: after it they have another parent
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._tell(f"the power is cut: SIGKILL to pid {self._pid} and {len(below)} below it")


def _descendants(pid: int) -> Iterator[int]:
    """Yield the children, then their children. It misses a process that starts meanwhile."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process has ended
                # The name in parentheses may hold any character; state and parent follow the last `)` (proc(5)).
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = list(parents.get(pid, ()))
    for child in found:
        yield child
        found += parents.get(child, ())
