"""What the tests of a gate share: the two ways to shut it, a wait that ends, and a thread that steps through it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spotguard.hooks.control.gate import Gate
from spotguard.hooks.control.gate_rule import Shut

#: Seconds after which a wait between threads counts as a deadlock.
PATIENCE = 100.0

B, A = Shut.BEFORE_CHANGE, Shut.AT_BOUNDARY


def within(seconds: float) -> Callable[[], float]:
    """What is left of so many seconds from now."""
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())


class Trainer:
    """A real thread that steps through the gate until told to stop."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.state = [0, 0]
        self.ended: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.gate.open()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for index in range(2):
                    self.gate.before_change()
                    self.state[index] += 1
                self.gate.begin_boundary()
                self.gate.end_boundary()
        except SystemExit as error:
            self.ended = error
