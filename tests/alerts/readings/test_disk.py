"""The readings of disks: their free share, and the bytes that the job has moved, by whatever counts them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from spotguard.alerts.readings.disk import disks

READ, WRITTEN = "spotguard_disk_read_bytes_total", "spotguard_disk_write_bytes_total"
#: Of a disk, as the kernel prints it: 100 sectors read, 30 written. See block/stat.rst.
STAT = "    11    2    100    5    7    1     30    4    0    9   10\n"


class Disks:
    """The kernel's files about the disk of a temporary folder, on its first partition or on the whole disk."""

    def __init__(self, folder: Path, *, partition: bool = True) -> None:
        self.folder = folder
        self.root, self.proc, self.devices = folder / "cgroup", folder / "proc", folder / "block"
        number = os.stat(folder).st_dev
        inner = folder / "sda" / "sda1" if partition else folder / "sda"
        inner.mkdir(parents=True)
        self.devices.mkdir()
        (self.devices / f"{os.major(number)}:{os.minor(number)}").symlink_to(inner)
        (folder / "sda" / "dev").write_text("8:0\n")
        (inner / "stat").write_text(STAT)
        if partition:
            (inner / "dev").write_text("8:1\n")
            (inner / "partition").write_text("1\n")

    def cgroup(self, membership: str, files: Mapping[str, str]) -> None:
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(membership)
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def bytes(self) -> list[tuple[str, tuple[str, ...], float]]:
        places = [("working directory", str(self.folder)), ("stage", str(self.folder))]
        _, *moved = disks(places, self.root, self.proc, self.devices)
        return moved


def moved(read: int, written: int) -> list[tuple[str, tuple[str, ...], float]]:
    return [(READ, ("working directory",), read), (WRITTEN, ("working directory",), written)]


def test_each_disk_is_read_once_also_below_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    places = [("store", str(tmp_path / "a" / "b")), ("stage", str(tmp_path))]
    ((name, (place,), free),) = disks(places, devices=tmp_path / "none")
    assert (name, place) == ("spotguard_disk_free_ratio", "store")
    disk = os.statvfs(tmp_path)
    assert free == pytest.approx(disk.f_bavail / disk.f_blocks, abs=0.05)


def test_a_read_only_file_system_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = os.statvfs_result((4096, 4096, 10, 0, 0, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: image)
    assert list(disks([("working directory", str(tmp_path))])) == []


IO_STAT = "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:0 rbytes=700 wbytes=300 rios=9 wios=9 dbytes=0 dios=0\n"
SERVICE = "8:16 Read 1\n8:16 Write 2\n8:16 Total 3\n8:0 Read 700\n8:0 Write 300\n8:0 Sync 0\n8:0 Total 1000\nTotal 1003\n"


@pytest.mark.parametrize("partition", [True, False])
@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/job\n", {"job/io.stat": IO_STAT, "io.stat": "8:0 rbytes=9000 wbytes=9000\n"}),
        ("0::/job/inner\n", {"job/io.stat": IO_STAT}),
        ("4:blkio:/job\n0::/\n", {"blkio/job/blkio.throttle.io_service_bytes": SERVICE}),
    ],
)
def test_bytes_are_those_of_the_innermost_cgroup_that_counts_the_disk(
    membership: str, files: Mapping[str, str], partition: bool, tmp_path: Path
) -> None:
    there = Disks(tmp_path, partition=partition)
    there.cgroup(membership, files)
    assert there.bytes() == moved(700, 300)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/job\n", {}),
        ("0::/job\n", {"job/io.stat": "8:16 rbytes=1 wbytes=2\n18:0 rbytes=1 wbytes=2\n8:0 \n"}),
        ("4:blkio:/\n", {"blkio/blkio.throttle.io_service_bytes": "Total 0\n"}),
    ],
)
def test_else_they_are_those_of_the_block_device(
    membership: str, files: Mapping[str, str], tmp_path: Path
) -> None:
    there = Disks(tmp_path)
    there.cgroup(membership, files)
    assert there.bytes() == moved(100 * 512, 30 * 512)


def test_without_a_block_device_nothing_is_read(tmp_path: Path) -> None:
    """As on tmpfs, NFS and overlayfs."""
    there = Disks(tmp_path)
    there.cgroup("0::/job\n", {"job/io.stat": IO_STAT})
    for each in there.devices.iterdir():
        each.unlink()
    assert there.bytes() == []
