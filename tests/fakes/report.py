"""Lines that processes of a test write into one pipe, read with a timeout as the only net."""

from __future__ import annotations

import os
import select
import time

TIMEOUT = 100.0  # seconds: a net under a hung test, never something a passing test waits for


class Report:
    """A pipe for lines. `fd` is its writing end, for children (`pass_fds`); one short write is one whole line."""

    def __init__(self) -> None:
        self._reading, self.fd = os.pipe()
        self._rest = b""
        #: Every line so far, in the order of their arrival.
        self.lines: list[str] = []

    def next(self, timeout: float = TIMEOUT) -> str:
        """The next line.

        Raises:
            AssertionError: none came in time, or everybody who could write one is gone.
        """
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no line in {timeout} s after {self.lines}"
            data = os.read(self._reading, 65536)
            assert data, f"everybody is gone after {self.lines}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]

    def until(self, wanted: str, timeout: float = TIMEOUT) -> str:
        """Read on until a line that starts with `wanted`."""
        end = time.monotonic() + timeout
        while not (line := self.next(max(0.0, end - time.monotonic()))).startswith(wanted):
            pass
        return line

    def hand_over(self) -> None:
        """Close our own writing end: when the last child is gone, `next` says so instead of waiting."""
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        os.close(self._reading)
        if self.fd >= 0:
            os.close(self.fd)
