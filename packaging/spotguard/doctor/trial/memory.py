"""The peak memory of a command's processes, loader workers included, and the limit that applies to them."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from spotguard.agent.process.memory.counters import MemoryCounters
from spotguard.prove.processes import Processes
from spotguard.providers.clock import Clock

#: Seconds between two looks at /proc, and the most of the time that the looks may take: a machine may have many processes.
_LOOK, _SHARE = 0.1, 0.05
#: Growth of the resident memory above its peak at which the proportional share is read: the kernel walks all pages for it.
_GROWTH = 1.01


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most memory that the processes had at one look."""

    nbytes: int = 0
    #: "PSS", in which each shared page counts once; "RSS", in which it counts in each process, where PSS may not be read.
    kind: str = "PSS"
    processes: int = 0


class MemoryMeter:
    """The watch over the processes of one command. The thread that follows the command calls it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = 0.0
        self._resident = 0
        self.peak = MemoryPeak()

    def look(self, processes: Processes) -> None:
        """Look at the memory of the processes, if the last look is long enough ago."""
        now = self._clock.monotonic()
        if now < self._due:
            return
        pids = processes.alive()
        took = self._clock.monotonic() - now
        self._due = now + took + max(_LOOK, took / _SHARE)
        resident = sum(map(_resident, pids))
        if resident <= _GROWTH * self._resident:
            return
        self._resident = resident
        shares = [share for pid in pids if (share := _proportional(pid)) is not None]
        # A process that ends between the two looks has no share, and counts as nothing.
        nbytes, kind = (sum(shares), "PSS") if shares else (resident, "RSS")
        if nbytes > self.peak.nbytes:
            self.peak = MemoryPeak(nbytes, kind, len(pids))


def limit() -> tuple[int, str]:
    """Return the bytes that the command may use, and whether the cgroup or the machine sets them."""
    machine = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    group = MemoryCounters().limit()
    return (group, "cgroup") if 0 < group < machine else (machine, "machine")


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):  # it has just ended
        return 0


def _proportional(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):  # it has just ended; a kernel without it, or a process of another user
        return None
