"""The kernel's counters of memory: what this machine and this process's cgroups use, their limits, and the kills for memory.

Used memory is what cannot be given back at once: pages of files that a process only reads go first, and count for nothing.
See cgroup-v2.rst, "memory.events" and "memory.stat", memcontrol.c for v1, and psi.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...core.failures.memory import MemoryReading

_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")
#: By version: the files with the counter of kills and the use in bytes, and the share of files in the use.
_FILES = {
    2: ("memory.events", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")),
    1: ("memory.oom_control", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}
#: By version: the limit beyond which the kernel kills, and the one beyond which it only slows a group down, until it stands.
_LIMITS = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}
#: v1's number for "no limit" is 2**63, rounded down to a page.
_NO_LIMIT = 2**60


class MemoryCounters:
    """The counters of the machine, and of the cgroups around this process.

    Args:
        root: where the cgroups are mounted.
        proc: the mount of /proc.
    """

    def __init__(self, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._root, self._proc = root, proc
        self._groups = [group for group in cgroups("memory", root, proc) if group[1].is_dir()]

    def kills(self) -> int:
        """Return how many processes were killed for memory so far; 0 if no cgroup counts them.

        v1 counts those of this group alone, and v2 those of the groups below, too.
        """
        for version, folder in self._groups:
            if (counted := numbers_in(folder / _FILES[version][0]).get("oom_kill")) is not None:
                return counted
        return 0

    def limit(self) -> int:
        """Return the lowest limit of the cgroups in bytes, beyond which the kernel kills; 0 if there is none."""
        return min((limit for _, _, limit in self._limited(1)), default=0)

    def reading(self) -> MemoryReading | None:
        """Return the use of what is fullest, the machine or a cgroup with a limit; None if nothing can be read."""
        found = [*self._of_cgroups(), *self._of_machine()]
        return max(found, key=lambda each: each.used / each.limit, default=None)

    def _of_cgroups(self) -> Iterable[MemoryReading]:
        for version, folder, limit in self._limited(2):
            _, use, files = _FILES[version]
            current, stat = _text(folder / use).strip(), numbers_in(folder / "memory.stat")
            if current.isdigit():
                used = max(0, int(current) - sum(stat.get(name, 0) for name in files))
                yield MemoryReading("this job's cgroup", used, limit, _full(folder / "memory.pressure"))

    def _of_machine(self) -> Iterable[MemoryReading]:
        kilobytes = numbers_in(self._proc / "meminfo")
        total, available = kilobytes.get("MemTotal", 0), kilobytes.get("MemAvailable", -1)
        if total > 0 <= available:
            pressure = _full(self._proc / "pressure" / "memory")
            # Reserved huge pages that nothing uses are not available to others, but nothing fills up by them.
            reserved = kilobytes.get("HugePages_Free", 0) * kilobytes.get("Hugepagesize", 0)
            used = max(0, total - available - reserved)
            yield MemoryReading("this machine", used * 1024, total * 1024, pressure)

    def _limited(self, limits: int) -> Iterable[tuple[int, Path, int]]:
        """Yield version, folder and the lowest limit of each group that has one.

        Args:
            limits: 1 for the limit alone beyond which the kernel kills; 2 for also that beyond which it slows down.
        """
        for version, folder in self._groups:
            texts = (_text(folder / name).strip() for name in _LIMITS[version][:limits])
            found = [int(text) for text in texts if text.isdigit() and 0 < int(text) < _NO_LIMIT]
            if found:
                yield version, folder, min(found)


def cgroups(controller: str, root: Path = _ROOT, proc: Path = _PROC) -> Iterable[tuple[int, Path]]:
    """Yield version and folder of the groups that may be this process's, innermost first: a limit may be any outer one's.

    In a namespace of its own, a container's path may name groups that it does not see: its own is the root then.

    Args:
        controller: the controller, such as "memory".
        root: where the cgroups are mounted.
        proc: the mount of /proc.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" or controller in controllers.split(","):
            # systemd links each controller of v1 that shares its mount, as cpu to cpu,cpuacct.
            version, top = (1, root / controller) if controllers else (2, root)
            inner = top / path.lstrip("/")
            yield version, inner
            yield from ((version, each) for each in inner.parents if each.is_relative_to(top))


def _full(path: Path) -> float:
    """Return the share of the last ten seconds in which all tasks waited for memory; 0.0 without such a file (PSI)."""
    for line in _text(path).splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "full" and rest.startswith("avg10="):
            return float(rest.removeprefix("avg10=").split(" ")[0]) / 100
    return 0.0


def numbers_in(path: Path) -> Mapping[str, int]:
    """Return the numbers of a file whose lines begin with a name and a number; none if it cannot be read."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
