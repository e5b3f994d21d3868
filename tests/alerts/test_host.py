"""What is read of the machine: disks, memory, pressure; nothing is guessed where the kernel does not tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotguard.alerts.host import disks, memory, pressure


def test_each_disk_is_read_once_also_below_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = list(disks([("store", str(tmp_path / "a" / "b")), ("stage", str(tmp_path))]))
    ((name, (place,), free),) = found
    assert (name, place) == ("spotguard_disk_free_ratio", "store")
    disk = os.statvfs(tmp_path)
    assert free == pytest.approx(disk.f_bavail / disk.f_blocks, abs=0.05)


def test_a_read_only_file_system_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = os.statvfs_result((4096, 4096, 10, 0, 0, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: image)
    assert list(disks([("working directory", str(tmp_path))])) == []


def proc(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_memory_is_that_of_the_cgroup_where_it_has_a_limit(tmp_path: Path) -> None:
    """Without the files that the kernel drops first."""
    group = tmp_path / "cgroup" / "job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("900\n")
    (group / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    source = proc(tmp_path / "proc", self__cgroup="0::/job\n")
    assert list(memory(tmp_path / "cgroup", source)) == [("spotguard_memory_used_ratio", (), 0.75)]


def test_memory_is_the_machine_s_without_a_limit(tmp_path: Path) -> None:
    meminfo = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n"
    source = proc(tmp_path / "proc", self__cgroup="0::/job\n", meminfo=meminfo)
    assert list(memory(tmp_path / "cgroup", source)) == [("spotguard_memory_used_ratio", (), 0.6)]
    assert list(memory(tmp_path / "cgroup", tmp_path / "none")) == []


def test_pressure_is_the_share_of_the_last_minute(tmp_path: Path) -> None:
    text = "some avg10=1.00 avg60=12.50 avg300=0.00 total=1\nfull avg10=0.00 avg60=3.00 avg300=0.00 total=1\n"
    source = proc(tmp_path / "proc", pressure__memory=text)
    assert list(pressure(source)) == [("spotguard_pressure_ratio", ("memory",), 0.125)]
