"""How much host memory a copy of the state may take."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be had without swapping or being killed: the machine's, or the container's if that is less.

    MemAvailable is the whole machine's; in a pod of 32 GiB on a machine of 512 a copy that fits there would have
    training killed. (docs.kernel.org: proc.rst, cgroup-v2.rst "memory.max", cgroup-v1/memory.rst.)
    """
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    for limit, used, stat, reclaimable in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most = (cgroups / limit).read_text().strip()
            if most.isdigit():
                counts = dict(line.split() for line in (cgroups / stat).read_text().splitlines())
                left = int(most) - int((cgroups / used).read_text()) + int(counts.get(reclaimable, 0))
                free = min(free, max(0, left))
        except OSError:
            continue  # no such limit here: the machine's own number stands
    return free
