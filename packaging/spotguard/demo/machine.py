"""A machine of the simulated cloud: a directory, the processes in it, and a power switch."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from spotguard.prove.processes import Processes
from spotguard.providers.clock import Clock

#: The environment variable that all processes on a machine have, and no other process.
_MARK = "SPOTGUARD_DEMO_MACHINE"


class DemoMachine:
    """A machine that runs one command and all processes that the command starts.

    Args:
        name: the machine's name on the screen.
        folder: the machine's disk. It is made here, and removed by `discard`.
        console: the file for all output on the machine. It outlives the machine.
        clock: the clock for the time at which the command ended.
    """

    def __init__(self, name: str, folder: Path, console: Path, clock: Clock) -> None:
        self.name = name
        self.folder = folder
        self.console = console
        self.log = folder / "losses.jsonl"
        self.final = folder / "final.pt"
        self.socket = folder / "agent.sock"
        self.outcome = folder / "agent.outcome.json"
        self._processes = Processes((_MARK, str(folder)), console, clock)
        folder.mkdir(mode=0o700)

    def start(self, command: Sequence[str]) -> None:
        self._processes.start(command, self.folder, self._environment())

    @property
    def ended(self) -> bool:
        return self._processes.ended

    @property
    def ended_at(self) -> float | None:
        """Monotonic seconds at which the command ended; None before."""
        return self._processes.ended_at

    @property
    def returncode(self) -> int | None:
        return self._processes.returncode

    def press_button(self) -> None:
        """Press ACPI's power button: the operating system sends SIGTERM to all processes at once."""
        self._processes.tell_all(signal.SIGTERM)

    def power_off(self) -> int:
        """Send SIGKILL to all processes that still run on the machine, and return their number."""
        return self._processes.end()

    def discard(self) -> None:
        """Switch the machine off, and remove its disk."""
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """Return why the script failed: the console's last exception, else its last line that spotguard did not write."""
        return self._processes.last_words()

    def _environment(self) -> dict[str, str]:
        # Options that the user has set for other runs must not apply to this one.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
        return {**kept, _MARK: str(self.folder)}
