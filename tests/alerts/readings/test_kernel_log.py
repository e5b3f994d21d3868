"""The kernel's lines that explain a failure, in the shapes that kernels and drivers write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotguard.alerts.readings.kernel_log import KernelLog, finding_in


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            {"kind": "xid", "xid": 79, "gpu": "0000:3b:00", "scope": "machine"},
        ),
        (
            "NVRM: Xid (PCI:0000:5e:00): 31, pid=4242, name=python, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS",
            {"kind": "xid", "xid": 31, "gpu": "0000:5e:00", "pid": 4242, "scope": "program"},
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 94, pid=7, Contained: SM (0x1). RST: No, D-RST: No",
            {"kind": "xid", "xid": 94, "gpu": "0000:01:00", "pid": 7, "scope": "machine"},
        ),
        (
            "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9437184kB, anon-rss:4194304kB",
            {"kind": "oom", "pid": 4242, "scope": "unknown"},
        ),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,"
            "task_memcg=/job,task=python,pid=4243,uid=1000",
            {"kind": "oom", "pid": 4243, "scope": "unknown"},
        ),
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1",
            {"kind": "disk", "device": "nvme0n1", "scope": "machine"},
        ),
        (
            "I/O error, dev sda, sector 8 op 0x1:(WRITE)",
            {"kind": "disk", "device": "sda", "scope": "machine"},
        ),
        (
            "nvme nvme0: I/O 12 QID 3 timeout, aborting",
            {"kind": "disk", "device": "nvme0", "scope": "machine"},
        ),
        (
            "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
            {"kind": "disk", "device": "nvme0n1p1", "scope": "machine"},
        ),
        (
            'XFS (sdb1): metadata I/O error in "xfs_da_read_buf"',
            {"kind": "disk", "device": "sdb1", "scope": "machine"},
        ),
        ("mce: [Hardware Error]: Machine check events logged", {"kind": "machine-check", "scope": "machine"}),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", {"kind": "machine-check", "scope": "machine"}),
    ],
)
def test_each_line_that_matters_is_known(line: str, facts: dict[str, object]) -> None:
    found = finding_in(line)
    assert found is not None
    assert found.facts() == {**facts, "text": line}


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "nvme nvme0: 8/0/0 default/read/poll queues",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        "usb 1-1: new high-speed USB device",
        "mce: CPU supports 32 MCE banks",
        "{1}[Hardware Error]: event severity: corrected",
        "[Hardware Error]: Corrected error, no action required.",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "I/O error, dev sr0, sector 0 op 0x0:(READ)",
        "Buffer I/O error on dev fd0, logical block 0",
        "I/O error, dev loop3, sector 8 op 0x0:(READ)",
        "python[12]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "audit: I/O error, dev sda, sector 8",
    ],
)
def test_a_line_that_tells_of_no_trouble_is_none(line: str) -> None:
    assert finding_in(line) is None


XID = b"4,1234,987654321,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


def test_earlier_lines_are_not_read_and_records_may_come_in_pieces(tmp_path: Path) -> None:
    """From the log's end on: the kernel keeps the lines of earlier jobs."""
    path = tmp_path / "kmsg"
    path.write_bytes(XID)
    log = KernelLog(str(path))
    assert list(log.read(1.0)) == []
    with path.open("ab") as file:
        file.write(b"6,1,1,-;usb 1-1: new device\n" + XID[:30])
    assert list(log.read(2.0)) == []
    with path.open("ab") as file:
        file.write(XID[30:])
    (found,) = log.read(3.0)
    assert (found.xid, found.gpu) == (79, "0000:3b:00")
    assert list(log.kept) == [(3.0, found)]
    log.close()


def test_a_line_that_a_program_wrote_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(str(path))
    path.write_bytes(XID.replace(b"4,", b"12,", 1) + XID)
    assert [found.xid for found in log.read(1.0)] == [79]
    log.close()


def test_only_the_kernel_s_device_is_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have a file, or another device, under its name; a test names its own."""
    (tmp_path / "kmsg").write_bytes(XID)
    monkeypatch.setattr("spotguard.agent.process.memory.kills.DEFAULT", str(tmp_path / "kmsg"))
    log = KernelLog(str(tmp_path / "kmsg"))
    assert (log.fd, log.closed) == (-1, "it is not the kernel's log")


def test_a_fifo_in_its_place_is_read_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(str(path))
    assert log.closed == ""
    assert list(log.read(1.0)) == []
    with path.open("wb") as writer:
        writer.write(XID)
        writer.flush()
        assert [found.xid for found in log.read(2.0)] == [79]
    log.close()


def test_a_loop_polls_a_fifo_and_no_file(tmp_path: Path) -> None:
    """A file is always ready: the loop would ask for the processor all the time."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    for name, polled in (("file", False), ("fifo", True)):
        log = KernelLog(str(tmp_path / name))
        assert (log.fd >= 0, log.poll_fd >= 0) == (True, polled)
        log.close()
        assert log.poll_fd < 0


def test_a_log_that_may_not_be_read_gives_nothing_and_says_why(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    assert log.closed == "No such file or directory"
    assert list(log.read(1.0)) == []
    log.close()
