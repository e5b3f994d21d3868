"""The kernel's log: lines about GPUs, memory, disks and processors that explain a failure."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...agent.process.memory.kills import DEFAULT, KILL, line_of_kernel, open_log, read_log
from ...providers.text import TEXT, clip

#: Xids after which the machine is to be left, and those that a program causes. NVIDIA's manual "Xid Errors", and the table in
#: research of Llama 3's failures: 48, 63, 64, 94, 95 memory; 74 NVLink; 79 fallen off the bus. 13, 31, 43 of a program.
_OF_MACHINE = frozenset({48, 63, 64, 74, 79, 94, 95, 119, 120})
_OF_PROGRAM = frozenset({13, 31, 43, 45, 68})
#: Findings that are kept.
_KEPT = 50
#: Records that are read at once: a driver in trouble may write thousands.
_AT_ONCE = 1000

#: Devices whose errors are of a medium, or of a file behind them.
_NO_DISK = r"(?!(?:sr|fd|loop)\d)"

_LINES = (
    (
        "xid",
        re.compile(
            r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d{1,6})(?!\d)(?:, pid='?(?P<pid>\d{1,10}))?"
        ),
    ),
    (
        "oom",
        re.compile(KILL),
    ),
    (
        "machine-check",
        re.compile(
            r"(?:mce: )?\[Hardware Error\]:(?!.*\bcorrected\b)|mce: .*Machine check events logged|EDAC \w+: \d+ UE\b",
            re.IGNORECASE,
        ),
    ),
    (
        "disk",
        re.compile(
            rf"(?:(?:blk_update_request: )?(?:critical medium|I/O) error,? (?:on )?dev {_NO_DISK}(?P<device>\w+)"
            rf"|Buffer I/O error on (?:dev|device) {_NO_DISK}(?P<device5>\w+)"
            r"|nvme (?P<device2>nvme\d+\S*): (?:I/O .*timeout|controller is down|Removing after)"
            rf"|EXT4-fs error \(device {_NO_DISK}(?P<device3>\w+)\)"
            rf"|(?:XFS|BTRFS)[^:]*\({_NO_DISK}(?P<device4>[\w-]+)\).*(?:I/O error|corrupt(?!ed: 0)))"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """One line of the kernel's log that matters.

    Attributes:
        kind: "xid", "oom", "disk" or "machine-check".
        text: the line.
        pid: the process that it names; 0 for none.
        xid: the number of an Xid; 0 for none.
        gpu: the GPU's place on the bus.
        device: the disk.
        scope: "machine" if another machine is needed, "program" if the program is the cause, else "unknown".
    """

    kind: str
    text: str
    pid: int = 0
    xid: int = 0
    gpu: str = ""
    device: str = ""
    scope: str = "unknown"

    def facts(self) -> dict[str, Any]:
        """Return the finding as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}


def finding_in(line: str) -> KernelFinding | None:
    """Return what a line of the log tells, or None."""
    for kind, form in _LINES:
        if found := form.match(line):
            groups = {name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value}
            xid = int(groups.get("xid", 0))
            scope = "machine" if kind in ("machine-check", "disk") or xid in _OF_MACHINE else "unknown"
            return KernelFinding(
                kind,
                clip(line, TEXT),
                int(groups.get("pid", 0)),
                xid,
                groups.get("gpu", ""),
                groups.get("device", ""),
                "program" if xid in _OF_PROGRAM else scope,
            )
    return None


class KernelLog:
    """The reader of the log, from its end on. It never blocks.

    Args:
        path: the log, or a FIFO or a file in its place.
    """

    def __init__(self, path: str = DEFAULT) -> None:
        self._rest = b""
        #: The newest findings, with the monotonic seconds at which they were read.
        self.kept: deque[tuple[float, KernelFinding]] = deque(maxlen=_KEPT)
        #: The open log, below 0 if it is not open; and why nothing is read, "" if it is.
        self.fd, self.closed = open_log(path)
        #: Whether it is a file in the log's place.
        self.is_file = self.fd >= 0 and stat.S_ISREG(os.fstat(self.fd).st_mode)

    @property
    def poll_fd(self) -> int:
        """The descriptor to poll; below 0 for none. A file is always ready, so a loop that polled it would never wait."""
        return -1 if self.is_file else self.fd

    def read(self, now: float) -> Iterator[KernelFinding]:
        """Yield what the log tells since the last call."""
        for data in read_log(self.fd, _AT_ONCE):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for raw in lines:
                # A line that begins with a space continues the record: the kernel's key and value pairs.
                found = finding_in(line_of_kernel(raw))
                if found is not None:
                    self.kept.append((now, found))
                    yield found

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
