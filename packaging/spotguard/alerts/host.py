"""The helper's readings of the machine: free disk, used memory, and pressure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..agent.process.memory_counters import MemoryCounters

#: A metric's name, the values of its labels, and a number.
Reading = tuple[str, tuple[str, ...], float]

_SOME = re.compile(r"^some .*avg60=(\d+\.\d+)", re.MULTILINE)


def disks(folders: Iterable[tuple[str, str]]) -> Iterator[Reading]:
    """Yield the free share of each disk that one of these folders is on. A folder that is not there yet counts as its parent.

    Args:
        folders: the folders' names for people, and their paths. Every user of the machine may read metrics, so paths are in none.
    """
    seen: set[int] = set()
    for name, folder in folders:
        path = Path(folder)
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            device, disk = path.stat().st_dev, os.statvfs(path)
        except OSError:
            continue
        if (
            device not in seen and disk.f_blocks and not disk.f_flag & os.ST_RDONLY
        ):  # an image is full by design
            seen.add(device)
            yield "spotguard_disk_free_ratio", (name,), disk.f_bavail / disk.f_blocks


def memory(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Iterator[Reading]:
    """Yield the used share of what is fullest: the machine's memory, or that of a cgroup with a limit."""
    if (reading := MemoryCounters(root, proc).reading()) is not None:
        yield "spotguard_memory_used_ratio", (), reading.used / reading.limit


def pressure(proc: Path = Path("/proc")) -> Iterator[Reading]:
    """Yield for each resource the share of the last minute in which a task waited for it; nothing if the kernel does not tell."""
    for resource in ("memory", "cpu", "io"):
        if found := _SOME.search(_text(proc / "pressure" / resource)):
            yield "spotguard_pressure_ratio", (resource,), float(found[1]) / 100


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
