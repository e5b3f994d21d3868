"""A terminal with a shell and one job on it, and somebody at the keyboard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.fakes.report import TIMEOUT, Report

_FAKES = Path(__file__).parent


class Desk:
    """The terminal's two ends: `keyboard` is ours, `slave` the job's."""

    def __init__(self, command: str, pipeline: str = "", guard: Sequence[str] = ()) -> None:
        """`command` is Python. `guard` stands over it: by default the fake guardian. `pipeline` is a shell's."""
        self.report = Report()
        self.keyboard, slave = os.openpty()
        orders, self._orders = os.pipe()
        fd = str(self.report.fd)
        guardian = [sys.executable, str(_FAKES / "guardian.py"), fd]
        job = [*(guard or guardian), sys.executable, "-c", command]
        if pipeline:
            job = ["/bin/bash", "-c", f'"$@" {pipeline}', "bash", *job]
        self.shell = subprocess.Popen(
            [sys.executable, str(_FAKES / "shell.py"), os.ttyname(slave), str(orders), fd, *job],
            env={**os.environ, "REPORT": fd},
            pass_fds=[self.report.fd, orders],
            start_new_session=True,
        )
        # Kept open here: without any opener left, a pseudo-terminal hangs up.
        self.slave = slave
        os.close(orders)
        self.report.hand_over()
        self.pid = self.command = 0

    def order(self, word: str) -> None:
        os.write(self._orders, f"{word}\n".encode())

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def run(self, word: str = "run") -> None:
        """Start the job and wait until guardian and command both stand."""
        self.order(word)
        seen = {self._of(self.report.next()), self._of(self.report.next())}
        while seen != {"guardian", "command"}:
            seen.add(self._of(self.report.next()))
            seen.discard("shell")
        started = next(line for line in self.report.lines if line.startswith("guardian: started"))
        self.command, self.pid = (int(word) for word in started.split()[2::2])

    @staticmethod
    def _of(line: str) -> str:
        return line.partition(":")[0] if "SIGCONT" not in line else "shell"

    def heard(self, line: str) -> int:
        return self.report.lines.count(line)

    def close(self) -> None:
        for group in filter(None, (self.command, self.pid)):
            with suppress(ProcessLookupError):  # it ended, as it should
                os.killpg(group, signal.SIGKILL)
        os.close(self._orders)
        try:
            self.shell.wait(TIMEOUT)
        finally:
            self.shell.kill()
            self.shell.wait(TIMEOUT)
        os.close(self.slave)
        os.close(self.keyboard)
        self.report.close()
