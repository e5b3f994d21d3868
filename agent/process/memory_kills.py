"""Processes that the kernel has killed for memory, as this process's cgroup counts them, and the cgroup's limit.

Under cgroup v2 the counter is `oom_kill` in `memory.events`, and includes groups below. Under v1 it is in `memory.oom_control`, and
counts this group alone. See cgroup-v2.rst, "memory.events", and memcontrol.c.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
#: By version: the file with the counter, and the file with the limit in bytes.
_FILES = {2: ("memory.events", "memory.max"), 1: ("memory.oom_control", "memory.limit_in_bytes")}


def memory_kills(root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many processes were killed for memory so far; 0 if no cgroup tells."""
    for version, folder in _groups(root, membership):
        for line in _text(folder / _FILES[version][0]).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.strip().isdigit():
                return int(number)
    return 0


def memory_limit(root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the cgroup's memory limit in bytes; 0 if there is none."""
    for version, folder in _groups(root, membership):
        text = _text(folder / _FILES[version][1]).strip()
        if (
            text.isdigit() and int(text) < 2**60
        ):  # v1's number for "no limit" is 2**63, rounded down to a page
            return int(text)
    return 0


def _groups(root: Path, membership: Path) -> list[tuple[int, Path]]:
    """Return the folders that may be this process's: with its path, and without (in a namespace of its own)."""
    found = []
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = path.lstrip("/")
        if controllers == "":
            found += [(2, root / relative), (2, root)]
        elif "memory" in controllers.split(","):
            found += [(1, root / "memory" / relative), (1, root / "memory")]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
