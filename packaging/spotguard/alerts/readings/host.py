"""The helper's readings of the machine: used memory, pressure, the CPU's quota, and steps of the clock."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from ...agent.process.memory.counters import MemoryCounters, cgroups, numbers_in

#: A metric's name, the values of its labels, and a number.
Reading = tuple[str, tuple[str, ...], float]

_SOME = re.compile(r"^some .*avg60=(\d+\.\d+)", re.MULTILINE)
#: Seconds over which the share of throttled periods is taken, as the kernel's own averages of pressure.
_MINUTE = 60.0
#: The least step of the wall clock that counts, in seconds: less may be a reading that was interrupted.
_LEAST_STEP = 0.5
#: Seconds that one reading of the clocks may take, and how often it is tried.
_TIGHT, _TRIES = 0.05, 5


def memory(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Iterator[Reading]:
    """Yield the used share of what is fullest: the machine's memory, or that of a cgroup with a limit."""
    if (reading := MemoryCounters(root, proc).reading()) is not None:
        yield "spotguard_memory_used_ratio", (), reading.used / reading.limit


def pressure(proc: Path = Path("/proc")) -> Iterator[Reading]:
    """Yield for each resource the share of the last minute in which a task waited for it; nothing if the kernel does not tell."""
    for resource in ("memory", "cpu", "io"):
        if found := _SOME.search(text_of(proc / "pressure" / resource)):
            yield "spotguard_pressure_ratio", (resource,), float(found[1]) / 100


class CpuThrottle:
    """How much of its time a quota of CPU holds this process's cgroups back.

    The kernel counts periods, usually of 0.1 s, and those in which the quota ran out before the period was over. A group's
    `throttled_usec` (v2) and `throttled_time` (v1) are sums over CPUs, so they are no shares of any time. See sched-bwc.rst.

    Args:
        root: where the cgroups are mounted.
        proc: the mount of /proc.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        #: By group: monotonic seconds, periods and throttled periods of the last minute's readings.
        self._recent: dict[Path, deque[tuple[float, int, int]]] = {}

    def read(self, now: float) -> Iterator[Reading]:
        """Yield the share of throttled periods, since the reading a minute ago, of the group that has most; nothing without a quota."""
        recent: dict[Path, deque[tuple[float, int, int]]] = {}
        for _, group in cgroups("cpu", self._root, self._proc):
            counted = numbers_in(group / "cpu.stat")
            if periods := counted.get("nr_periods", 0):  # they are counted under a quota only
                recent[group] = self._recent.get(group, deque())
                recent[group].append((now, periods, counted.get("nr_throttled", 0)))
                while recent[group][0][0] < now - _MINUTE:
                    recent[group].popleft()
        self._recent = recent
        if recent:
            yield "spotguard_cpu_throttled_ratio", (), max(map(_throttled, recent.values()))


def _throttled(readings: deque[tuple[float, int, int]]) -> float:
    _, periods, throttled = (last - first for first, last in zip(readings[0], readings[-1], strict=True))
    return min(1.0, throttled / periods) if periods > 0 else 0.0


class ClockSteps:
    """The steps of the wall clock: how far somebody or NTP has set it, forward and back.

    Compared with the time since boot, which counts a suspended machine's sleep, too (CLOCK_BOOTTIME). NTP that slews changes the
    pace of both clocks, so it is no step (adjtimex(2)).

    Args:
        wall: reads the wall clock.
        boot: reads the time since boot.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall, self._boot = wall, boot
        self._offset = self._read()
        self._seconds = {"forward": 0.0, "back": 0.0}

    def read(self) -> Iterator[Reading]:
        """Yield the seconds of all steps so far, by direction."""
        offset = self._read()
        if offset is not None and self._offset is not None:
            step = offset - self._offset
            if abs(step) >= _LEAST_STEP:
                self._seconds["forward" if step > 0 else "back"] += abs(step)
        self._offset = self._offset if offset is None else offset
        for direction, seconds in self._seconds.items():
            yield "spotguard_clock_step_seconds_total", (direction,), seconds

    def _read(self) -> float | None:
        """Return how far the wall clock is ahead of the time since boot; None if this process was interrupted in each try."""
        for _ in range(_TRIES):
            before, wall, after = self._boot(), self._wall(), self._boot()
            if after - before < _TIGHT:
                return wall - (before + after) / 2
        return None


def text_of(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
