"""The helper's readings of disks: their free share, and the bytes that were read from them and written to them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...agent.process.memory.counters import cgroups
from .host import Reading, text_of

#: By version of cgroups: the file with the bytes of each disk, and its line, or lines, of one. See cgroup-v2.rst, "io.stat", and
#: blkio-controller.rst, "blkio.throttle.io_service_bytes".
_BYTES = {
    2: ("io.stat", r"^{disk} rbytes=(\d+) wbytes=(\d+)"),
    1: ("blkio.throttle.io_service_bytes", r"^{disk} Read (\d+)\n{disk} Write (\d+)"),
}
#: The names of folders, for people. Folders on one disk are one series, named by the first of them.
PLACES = ("store", "stage", "working directory", "temporary directory", "/dev/shm")
#: Bytes of a sector in the statistics of block devices, whatever the disk's own are. See block/stat.rst.
_SECTOR = 512


def disks(
    folders: Iterable[tuple[str, str]],
    root: Path = Path("/sys/fs/cgroup"),
    proc: Path = Path("/proc"),
    devices: Path = Path("/sys/dev/block"),
) -> Iterator[Reading]:
    """Yield the free share and the bytes of each disk that a folder is on. A folder that is not there yet counts as its parent.

    Args:
        folders: the folders' names for people, and their paths. Every user of the machine may read metrics, so paths are in none.
        root: where the cgroups are mounted.
        proc: the mount of /proc.
        devices: the block devices by their numbers.
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
            if (moved := _bytes(device, root, proc, devices)) is not None:
                yield "spotguard_disk_read_bytes_total", (name,), float(moved[0])
                yield "spotguard_disk_write_bytes_total", (name,), float(moved[1])


def _bytes(device: int, root: Path, proc: Path, devices: Path) -> tuple[int, int] | None:
    """Return the bytes that this job's cgroup has read from a disk and written to it, or else all that anybody has.

    None if neither is counted: tmpfs, NFS, overlayfs and Btrfs have no block device behind their number.
    """
    folder = devices / f"{os.major(device)}:{os.minor(device)}"
    # Cgroups count by disk, and a file system may be on a partition, whose folder is in the disk's.
    place = folder / ".." if (folder / "partition").exists() else folder
    if disk := text_of(place / "dev").strip():
        for version, group in cgroups("blkio", root, proc):
            file, line = _BYTES[version]
            if found := re.search(line.format(disk=disk), text_of(group / file), re.MULTILINE):
                return int(found[1]), int(found[2])
    counted = text_of(folder / "stat").split()
    return (int(counted[2]) * _SECTOR, int(counted[6]) * _SECTOR) if len(counted) > 6 else None
