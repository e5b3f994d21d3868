"""Processes that the kernel has killed for memory, as this process's cgroup counts them, the cgroup's limit, and its use.

Under cgroup v2 the counter is `oom_kill` in `memory.events`, and includes groups below. Under v1 it is in `memory.oom_control`, and
counts this group alone. See cgroup-v2.rst, "memory.events", and memcontrol.c.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
#: By version: the file with the counter, and the file with the limit in bytes.
_FILES = {2: ("memory.events", "memory.max"), 1: ("memory.oom_control", "memory.limit_in_bytes")}
#: The file with the bytes in use, and the row of memory.stat with those of files that are not in use.
_USAGE = {2: "memory.current", 1: "memory.usage_in_bytes"}
_DROPPED = {2: "inactive_file", 1: "total_inactive_file"}


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


def memory_used(root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the bytes that the cgroup uses, without files that the kernel can drop at once; None if no cgroup tells."""
    for version, folder in _groups(root, membership):
        text = _text(folder / _USAGE[version]).strip()
        if text.isdigit():
            rows = dict(
                line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line
            )
            return max(0, int(text) - int(rows.get(_DROPPED[version], "0")))
    return None


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
