"""Kills for memory while the command runs: the cgroups' counter of them, and the processes that the kernel's log names.

`/dev/kmsg` gives one record for each read (Documentation/ABI/testing/dev-kmsg), from the place to which the reader has moved. It
needs root, CAP_SYSLOG, or `kernel.dmesg_restrict = 0`; without that, only the counter is evidence.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

from .counters import MemoryCounters

#: The variable that names another file or FIFO than the kernel's own log, for tests.
VARIABLE = "SPOTGUARD_KERNEL_LOG"
DEFAULT = "/dev/kmsg"
#: A line about a kill for memory (mm/oom_kill.c).
KILL = (
    r"(?:Memory cgroup out of memory|Out of memory(?: \([^)]*\))?): Killed process (?P<pid>\d{1,10})"
    r"|oom-kill:.*\bpid=(?P<pid2>\d{1,10})"
)
#: The header of a record: priority and facility in one number, then its number and time (dev-kmsg). Facility 0 is the kernel's
#: own; anybody who may open the log may write lines of the others.
_HEADER = r"(?P<priority>\d+),\d+,\d+,[^;]*;"
#: The device of the log: "mem", kmsg.
_KMSG = os.makedev(1, 11)
#: Bytes of one read. Reads of the log after a failure: its ring has fewer records, but a file in its place may have more.
_SIZE, _READS = 64 * 1024, 100_000


def open_log(path: str) -> tuple[int, str]:
    """Open the kernel's log at its end; return the descriptor, and why it is below 0 ("" if it is not).

    Args:
        path: the log, or a FIFO or a file in its place.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return -1, error.strerror or str(error)
    what = os.fstat(fd)
    if path == DEFAULT and not (stat.S_ISCHR(what.st_mode) and what.st_rdev == _KMSG):
        os.close(fd)  # a container's /dev may have anything under this name
        return -1, "it is not the kernel's log"
    with suppress(OSError):  # a FIFO has no end to move to
        os.lseek(fd, 0, os.SEEK_END)
    return fd, ""


def read_log(fd: int, reads: int) -> Iterator[bytes]:
    """Yield what the log has, without waiting. A read of the kernel's log is one record, with its line break.

    Args:
        fd: the open log; below 0 yields nothing.
        reads: the most reads.
    """
    for _ in range(reads if fd >= 0 else 0):
        try:
            data = os.read(fd, _SIZE)
        except BrokenPipeError:  # records were overwritten before they were read
            continue
        except OSError:  # nothing more is there
            return
        if not data:
            return
        yield data


def line_of_kernel(record: bytes) -> str:
    """Return the line of a record that the kernel itself wrote; "" for another one."""
    text = record.decode(errors="replace")
    header = re.match(_HEADER, text)
    return text[header.end() :] if header and int(header["priority"]) < 8 else ""


class MemoryKills:
    """The kills for memory since `begin`.

    Args:
        counters: the cgroups' counters; those of this process by default.
        log: the kernel's log; by default what the environment names, or `/dev/kmsg`.
    """

    def __init__(self, counters: MemoryCounters | None = None, log: str | None = None) -> None:
        self._counters = MemoryCounters() if counters is None else counters
        self._log = os.environ.get(VARIABLE, DEFAULT) if log is None else log
        self._before = 0
        self._fd = -1

    def begin(self) -> None:
        """Count from now on."""
        self.close()
        self._before = self._counters.kills()
        self._fd, _ = open_log(self._log)
        if self._fd >= 0 and stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            self.close()  # what is read there, the helper of alerts would miss

    def count(self) -> int:
        """Return how many processes of this process's cgroups were killed, as far as a cgroup counts them."""
        return max(0, self._counters.kills() - self._before)

    def limit(self) -> int:
        """Return the lowest limit of the cgroups in bytes; 0 if there is none."""
        return self._counters.limit()

    def pids(self) -> frozenset[int]:
        """Return the processes that the kernel's log names. In a PID namespace, these are the host's numbers."""
        found = (re.match(KILL, line) for line in self._lines())
        return frozenset(int(each["pid"] or each["pid2"]) for each in found if each is not None)

    def _lines(self) -> Iterator[str]:
        rest = b""
        for data in read_log(self._fd, _READS):
            *lines, rest = (rest + data).split(b"\n")
            yield from map(line_of_kernel, lines)
        if rest:
            yield line_of_kernel(rest)

    def close(self) -> None:
        """Close the log."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
