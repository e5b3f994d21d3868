"""The command's processes that a signal to its group does not reach: torchrun's workers, and the data loaders' workers below.

The agent finds the processes of a live command by descent (`below`). It finds those that training processes left behind by
number (`look`, `send`). Torchrun gives each worker its own session and process group, and both have the worker's pid as
their number. After that worker's end the agent searches /proc for processes with that number. The number may belong to
another program by then. So a process is the command's only if its environment names the agent's socket. If a program has
overwritten its environment's memory (setproctitle, whose title a forked worker has too), the session's number and the user
decide.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from ..config.options import PARENT
from ..ipc.process_stat import ProcessStat, stat_of


def below(top: int) -> dict[int, ProcessStat]:
    """Return all descendants of a live process. The children of a process that has ended are no descendants any more."""
    stats = {pid: stat for pid in pids() if (stat := _living(pid)) is not None}
    descendants: dict[int, ProcessStat] = {}
    above: Set[int] = {top}
    while above:
        children = {n: stat for n, stat in stats.items() if stat.parent in above and n not in descendants}
        descendants |= children
        above = children.keys()
    return descendants


def kill(them: Mapping[int, ProcessStat]) -> None:
    """Send SIGKILL to those of these processes that still live."""
    _send_checked(signal.SIGKILL, them)


def _send_checked(signum: int, them: Mapping[int, ProcessStat]) -> None:
    for pid, stat in them.items():
        signal_checked(pid, signum, partial(_is, pid, stat.born))


def send_handled(signum: int, group: int, trained: Set[int]) -> bool:
    """Send a signal to the processes of this group that handle it, or ignore it (proc_pid_status(5)).

    Returns:
        False if no process does, or if one of the live processes in `trained` does not. Nothing was sent then.
    """
    handling: dict[int, ProcessStat] = {}
    for pid in pids():
        stat = _living(pid)
        if stat is None or (stat.group != group and pid not in trained):
            continue
        if _handles(pid, signum):
            handling[pid] = stat
        elif pid in trained:
            return False
    meant = {pid: stat for pid, stat in handling.items() if stat.group == group}
    _send_checked(signum, meant)
    return bool(meant)


def _handles(pid: int, signum: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigIgn:", "SigCgt:"))]
    except OSError:  # it has just ended
        return False
    return any(mask >> (signum - 1) & 1 for mask in masks)


def look(group: int, orphaned: Set[int], env: Mapping[str, str]) -> tuple[bool, bool]:
    """Search for live processes of the command, in one pass over /proc: a large machine has thousands of processes.

    Args:
        group: the command's own process group.
        orphaned: pids of training processes that have ended.
        env: the command's environment.

    Returns:
        Whether a process lives in the command's group, and whether one lives that an ended training process left behind.
    """
    in_group = left_behind = False
    for pid in pids():
        if (stat := _living(pid)) is None:
            continue
        in_group = in_group or 0 < group == stat.group
        left_behind = left_behind or _ours(pid, orphaned, env, stat)
        if in_group and (left_behind or not orphaned):
            break
    return in_group, left_behind


def send(signum: int, orphaned: Set[int], env: Mapping[str, str]) -> None:
    """Send this signal to every process that these ended training processes left behind."""
    for pid in pids():
        if _ours(pid, orphaned, env):
            signal_checked(pid, signum, partial(_ours, pid, orphaned, env))


def record_of(pid: int, env: Mapping[str, str]) -> str:
    """Return the record by which a later agent recognises this command. It is unique, also across boots of the machine.

    Args:
        pid: the command's pid.
        env: the command's environment.
    """
    return "" if (name := _name(pid)) is None else f"{name} {env.get(PARENT, '')}"


def recorded(record: str) -> int:
    """Return the pid of the process with this record; 0 if the process has ended, or if the text is not a record."""
    pid, _, _ = record.partition(" ")
    name = _name(int(pid)) if pid.isdecimal() else None
    return int(pid) if name is not None and record.startswith(f"{name} ") else 0


def inherited(record: str, env: Mapping[str, str]) -> int | None:
    """Return the pid of the command that a killed agent left here; 0 if the command has ended and other processes of it live.

    Args:
        record: the record that the killed agent wrote; "" if that agent ended in order.
        env: the environment of this agent's command. It must match: the command of another run that listened at the same path
            is not for this agent to end.

    Returns:
        None if nothing is left.
    """
    if not record.endswith(f" {env[PARENT]}"):
        return None
    return recorded(record) or (0 if any(is_marked(pid, _mark(env)) for pid in pids()) else None)


def _living(pid: int) -> ProcessStat | None:
    """The stat of a process that runs; None for one that has ended, a zombie too."""
    stat = stat_of(pid)
    return None if stat is None or stat.ended else stat


def _name(pid: int) -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:  # a sandbox may lack the file
        boot = "?"
    return None if (stat := _living(pid)) is None else f"{pid} {stat.born} {boot}"


def pids() -> Iterator[int]:
    """Yield the pids of all processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def signal_checked(pid: int, signum: int, still: Callable[[], bool]) -> None:
    """Send a signal to a process if `still` says, of the process that gets it, that it is the one that is meant."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if still():  # the descriptor belongs to the process that was checked
            signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended; or it belongs to another user now, and the agent may not end it
    finally:
        os.close(pidfd)


def _is(pid: int, born: int) -> bool:
    stat = _living(pid)
    return stat is not None and stat.born == born


def _ours(pid: int, orphaned: Set[int], env: Mapping[str, str], stat: ProcessStat | None = None) -> bool:
    stat = stat or _living(pid)
    if stat is None or orphaned.isdisjoint((stat.group, stat.session)) or PARENT not in env:
        return False
    try:
        if b"=" in (environment := _environment(pid)):  # not overwritten
            return _mark(env) in environment.split(b"\0")
        return stat.session in orphaned and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:  # it has just ended, or belongs to another user
        return False


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether the process has this variable, as `NAME=value`, in its environment."""
    try:
        return mark in _environment(pid).split(b"\0")
    except OSError:  # it has just ended, or belongs to another user
        return False


def _mark(env: Mapping[str, str]) -> bytes:
    return os.fsencode(f"{PARENT}={env[PARENT]}")


def _environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
