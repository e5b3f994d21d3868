"""A machine that goes, for one process on it: what ACPI's power button brings, and then the end.

At the button the operating system stops its services: SIGTERM to the process. At the end nothing runs any more: SIGKILL
to it and to all that it has started.
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
    """Holds one process by its pidfd, so that another one under the same number is safe from it.

    Raises:
        UsageError: there is no such process, or it is somebody else's.
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
        """Press the button so many seconds from now, and cut the power so many seconds from now."""
        now = self._clock.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(now + button, now + end), name="simulator power"
        )
        self._thread.start()

    def close(self) -> None:
        """Nothing more happens to the process."""
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
            with suppress(ProcessLookupError):  # it has ended by itself, as it should
                act()

    def _term(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        self._tell(f"ACPI's power button: SIGTERM to pid {self._pid}")

    def _kill(self) -> None:
        below = list(_descendants(self._pid))  # before it is gone: then they are nobody's children
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._tell(f"the power is cut: SIGKILL to pid {self._pid} and {len(below)} below it")


def _descendants(pid: int) -> Iterator[int]:
    """Children first, then theirs. A process that is born meanwhile is missed."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                # The name in parentheses may hold anything: what follows the last one is state and parent (proc(5)).
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = list(parents.get(pid, ()))
    for child in found:
        yield child
        found += parents.get(child, ())
