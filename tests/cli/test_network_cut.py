"""A cut of one command's network, where it cannot be made: the reason, and nothing left. `tests/e2e` cuts a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.cli.network_cut import NetworkCut
from spotguard.providers.errors import UsageError


def process(folder: Path, mounts: str) -> Path:
    """A process's directory in /proc, with these mounts."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "mounts").write_text(mounts)
    (proc / "cgroup").write_text("4:memory:/other\n0::/job\n")
    return proc


def test_without_a_cgroup_v2_the_error_names_what_is_missing(tmp_path: Path) -> None:
    proc = process(tmp_path, "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    with pytest.raises(UsageError, match="cut: no cgroup v2 is mounted here; it needs root, or CAP_BPF"):
        NetworkCut(proc)


def test_a_cgroup_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    proc = process(tmp_path, f"cgroup2 {tmp_path} cgroup2 ro 0 0\n")
    with pytest.raises(UsageError, match=f"no cgroup can be made in {tmp_path}/job: No such file or dir"):
        NetworkCut(proc)


def test_a_kernel_that_refuses_is_told_and_leaves_no_cgroup(tmp_path: Path) -> None:
    """This folder is no cgroup, so the kernel takes no program for it; without rights it takes none at all."""
    (tmp_path / "job").mkdir()
    proc = process(tmp_path, f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with pytest.raises(
        UsageError, match=r"cut: the kernel refuses a program that drops packets: .*; it needs root"
    ):
        NetworkCut(proc)
    assert list((tmp_path / "job").iterdir()) == []
