"""The command's processes that no signal to its group reaches: torchrun's workers, and the data loader's workers behind them.

A live command's are found by descent (`below`). What training processes have left behind is found by number (`look`, `send`).
Torchrun gives each of its workers a session, and with it a process group; both have the worker's pid for their number. Who
is still there after that worker's end is found in /proc, and is ours if it was given our socket by its environment: a number
can be a stranger's by then. Where the memory of the environment is overwritten (setproctitle, whose title a forked worker
has too), the session's number and the user have to do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import NamedTuple

from ..config.options import PARENT


class ProcessPlace(NamedTuple):
    """Where a process is. No group's or session's number is given to a new process while anybody is there."""

    parent: int
    group: int
    session: int
    #: In ticks since the machine's boot: with the pid it is this process and no other.
    born: int


def below(top: int) -> dict[int, ProcessPlace]:
    """All descendants of a process that lives. Who is behind one that has ended is its descendant no longer."""
    places = {pid: place for pid in _pids() if (place := place_of(pid)) is not None}
    found: dict[int, ProcessPlace] = {}
    above: Set[int] = {top}
    while above:
        children = {n: place for n, place in places.items() if place.parent in above and n not in found}
        found |= children
        above = children.keys()
    return found


def kill(them: Mapping[int, ProcessPlace]) -> None:
    """SIGKILL to who is still there of these."""
    for pid, place in them.items():
        _signal(pid, signal.SIGKILL, partial(_is, pid, place.born))


def look(group: int, orphaned: Set[int], env: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether anybody lives in the group of the command, and whether anybody is left in one of these. One pass over /proc,
    which has thousands of processes on a large machine.

    Args:
        group: the command's own.
        orphaned: pids of training processes that are gone.
        env: what the command was given.
    """
    there = left = False
    for pid in _pids():
        if (place := place_of(pid)) is None:
            continue
        there = there or 0 < group == place.group
        left = left or _ours(pid, orphaned, env, place)
        if there and (left or not orphaned):
            break
    return there, left


def send(signum: int, orphaned: Set[int], env: Mapping[str, str]) -> None:
    """Send this signal to all who are left in these."""
    for pid in _pids():
        if _ours(pid, orphaned, env):
            _signal(pid, signum, partial(_ours, pid, orphaned, env))


def record_of(pid: int, env: Mapping[str, str]) -> str:
    """The name by which a later agent knows this command: no other process has it, in this life of the machine or another.

    Args:
        env: what the command was given.
    """
    return "" if (name := _name(pid)) is None else f"{name} {env.get(PARENT, '')}"


def recorded(record: str) -> int:
    """The pid of the process with this record; 0 if it has ended, or if the record is none."""
    pid, _, _ = record.partition(" ")
    name = _name(int(pid)) if pid.isdecimal() else None
    return int(pid) if name is not None and record.startswith(f"{name} ") else 0


def inherited(record: str, env: Mapping[str, str]) -> int | None:
    """Return the pid of the command that a killed agent left here; 0 if the command has ended and other processes of it live.

    Args:
        record: what that agent wrote down of its command; "" if it ended in order.
        env: what our own command is given. Another run, which was told to listen here too, is not ours to end.

    Returns:
        None if nothing is left.
    """
    if not record.endswith(f" {env[PARENT]}"):
        return None
    return recorded(record) or (0 if any(_is_marked(pid, env) for pid in _pids()) else None)


def place_of(pid: int) -> ProcessPlace | None:
    """None for a process that has ended, a zombie too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may hold spaces and brackets (proc(5)): state, parent, group, session; the 22nd is the start.
            state, *numbers = file.read().rpartition(b")")[2].split()
    except OSError:  # it has just ended
        return None
    parent, group, session = map(int, numbers[:3])
    return None if state in (b"Z", b"X") else ProcessPlace(parent, group, session, int(numbers[18]))


def _name(pid: int) -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:  # a sandbox has none
        boot = "?"
    return None if (place := place_of(pid)) is None else f"{pid} {place.born} {boot}"


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _signal(pid: int, signum: int, still: Callable[[], bool]) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if still():  # the descriptor is of who was looked at
            signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended; or it has become another user's, and is not ours to end
    finally:
        os.close(pidfd)


def _is(pid: int, born: int) -> bool:
    place = place_of(pid)
    return place is not None and place.born == born


def _ours(pid: int, orphaned: Set[int], env: Mapping[str, str], place: ProcessPlace | None = None) -> bool:
    place = place or place_of(pid)
    if place is None or orphaned.isdisjoint((place.group, place.session)) or PARENT not in env:
        return False
    try:
        if b"=" in (said := _environment(pid)):  # it is an environment still
            return _mark(env) in said.split(b"\0")
        return place.session in orphaned and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:  # it has just ended, or is another user's
        return False


def _is_marked(pid: int, env: Mapping[str, str]) -> bool:
    try:
        return _mark(env) in _environment(pid).split(b"\0")
    except OSError:  # it has just ended, or is another user's
        return False


def _mark(env: Mapping[str, str]) -> bytes:
    return os.fsencode(f"{PARENT}={env[PARENT]}")


def _environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
