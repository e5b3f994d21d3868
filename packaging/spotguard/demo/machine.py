"""A machine of the simulated cloud: a folder, what runs in it, and a power switch."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from spotguard.prove.processes import Processes
from spotguard.providers.clock import Clock

#: In the environment of everything that runs on a machine, and of nothing else.
_MARK = "SPOTGUARD_DEMO_MACHINE"


class DemoMachine:
    """One command, and everything it starts.

    Args:
        folder: its disk. Made here, and gone after `discard`.
        console: the file for whatever is printed on it. It outlives the machine.
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
        """Monotonic seconds, once the command has ended."""
        return self._processes.ended_at

    @property
    def returncode(self) -> int | None:
        return self._processes.returncode

    def press_button(self) -> None:
        """ACPI's power button: the operating system asks everything that runs on it to end, in one breath."""
        self._processes.tell_all(signal.SIGTERM)

    def power_off(self) -> int:
        """SIGKILL to everything that still runs on it; how many processes that were."""
        return self._processes.end()

    def discard(self) -> None:
        """Switch it off, and lose its disk."""
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """The last line on its console that the agent did not write: of a script that failed, why."""
        return self._processes.last_words()

    def _environment(self) -> dict[str, str]:
        # What the user has set for runs of their own must not reach into this one.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
        return {**kept, _MARK: str(self.folder)}
