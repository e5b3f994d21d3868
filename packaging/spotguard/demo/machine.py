"""A machine of the simulated cloud: a folder, what runs in it, and a power switch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from spotguard.providers.clock import Clock

#: In the environment of everything that runs on a machine, and of nothing else. Children inherit it, whatever
#: process group or session they move to, so the power switch finds them all.
_MARK = "SPOTGUARD_DEMO_MACHINE"


class Machine:
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
        #: Monotonic seconds, once the command has ended.
        self.ended_at: float | None = None
        self.returncode: int | None = None
        self._clock = clock
        self._waiter: threading.Thread | None = None
        folder.mkdir(mode=0o700)

    def start(self, command: Sequence[str]) -> None:
        # Away from our terminal's session: a Ctrl-C is for the demo, which then switches its machines off.
        with self.console.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._waiter = threading.Thread(
            target=self._wait, args=(process,), name=f"demo-{self.name.replace(' ', '-')}", daemon=True
        )
        self._waiter.start()

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    def press_button(self) -> None:
        """ACPI's power button: the operating system asks everything that runs on it to end, in one breath."""
        for pid in self._processes():
            self._signal(pid, signal.SIGTERM)

    def power_off(self) -> int:
        """SIGKILL to everything that still runs on it; how many processes that were."""
        killed: set[int] = set()
        while found := self._processes() - killed:  # again: one may have forked while we looked
            for pid in found:
                self._signal(pid, signal.SIGKILL)
            killed |= found
        if self._waiter is not None:
            self._waiter.join()
        return len(killed)

    def discard(self) -> None:
        """Switch it off, and lose its disk."""
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """The last line on its console that the agent did not write: of a script that failed, why."""
        lines = [line.strip() for line in self.console.read_text(errors="replace").split("\n")]
        return next((line for line in reversed(lines) if line and not line.startswith("spotguard ")), "")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        self.returncode = process.wait()
        self.ended_at = self._clock.monotonic()

    def _environment(self) -> dict[str, str]:
        # What the user has set for runs of their own must not reach into this one.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
        return {**kept, _MARK: str(self.folder)}

    def _processes(self) -> set[int]:
        return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and self._is_mine(int(entry))}

    def _is_mine(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # gone meanwhile, or another user's
        return f"{_MARK}={self.folder}".encode() in environment.split(b"\0")

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
