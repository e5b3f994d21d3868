"""The process that serves the job's own store, as a first rank's does: it dies or stands still when a test says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "hosts.py"


class Hosts:
    """One process with torch, from which the hosts of all tests are forked. They end with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()  # workers of a loader that another test has left may hold its standard input open
        self._process.communicate()


class Host:
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        pid, port = hosts.ask("serve").split()
        self._pid, self.port, self._dead = pid, int(port), False

    def stands_still(self) -> None:
        self._hosts.ask(f"stop {self._pid}")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stands_still()
        try:
            yield
        finally:
            if not self._dead:
                self._hosts.ask(f"go {self._pid}")

    def dies(self) -> None:
        if not self._dead:
            self._dead = True
            self._hosts.ask(f"kill {self._pid}")
