"""State of one process, as the kernel reports it: its line in /proc, and its pidfd."""

from __future__ import annotations

import select
from pathlib import Path
from typing import NamedTuple

#: Flag of a process that is on its way out (include/linux/sched.h).
_PF_EXITING = 0x4


class ProcessStat(NamedTuple):
    """The fields of /proc/PID/stat that the agent uses (proc_pid_stat(5))."""

    #: "R", "S", … "Z" (zombie) or "X" (dead).
    state: str
    parent: int
    group: int
    session: int
    flags: int
    #: Ticks between the machine's boot and the start. With the pid it names this process and no other.
    born: int

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more; a zombie waits for its parent only."""
        return self.state in ("Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether a signal or a tracer has stopped it."""
        return self.state in ("T", "t")

    @property
    def exiting(self) -> bool:
        """Whether it runs nothing of its own any more. A killed process first gives its memory back, which can take seconds."""
        return bool(self.flags & _PF_EXITING)


def stat_of(pid: int) -> ProcessStat | None:
    """Return the stat of a process; None if there is no such process, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold spaces and brackets: the fields count from the last one.
            state, *numbers = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    parent, group, session = map(int, numbers[:3])
    return ProcessStat(state.decode(), parent, group, session, int(numbers[5]), int(numbers[18]))


def has_ended(pidfd: int) -> bool:
    """Return whether the process is gone: then its pidfd is readable."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def is_exiting(pid: int) -> bool:
    """Return whether the process is gone, or runs nothing of its own any more."""
    stat = stat_of(pid)
    return stat is None or stat.exiting


def may_run(pid: int) -> bool:
    """Return whether the process lives, and is neither stopped nor frozen."""
    stat = stat_of(pid)
    return stat is not None and not (stat.ended or stat.exiting or stat.stopped or is_frozen(pid))


def is_frozen(pid: int, cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> bool:
    """Return whether a cgroup of the process is frozen, as `docker pause` does; False if its cgroup is not seen from here.

    The kernel counts the groups around it, too: cgroup-v2.rst, "cgroup.events", and freezer-subsystem.rst for v1.
    """
    for line in _text(proc / str(pid) / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inner = path.lstrip("/")
        if controllers == "" and "frozen 1" in _text(cgroups / inner / "cgroup.events"):
            return True
        if controllers == "freezer" and _text(cgroups / "freezer" / inner / "freezer.state").strip() in (
            "FROZEN",
            "FREEZING",
        ):
            return True
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
