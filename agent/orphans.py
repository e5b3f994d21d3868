"""What a training process has left behind in a group of its own: a data loader's workers below a torchrun that is gone.

Torchrun gives each of its workers a session, and with it a process group whose number is the worker's pid. Who is still in
such a group after its leader's end is found in /proc, and is ours if it was given our socket by its environment: a number can
be a stranger's by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Mapping

from .exported import PARENT


def left(groups: Collection[int], env: Mapping[str, str]) -> bool:
    """Whether there is anybody.

    Args:
        groups: of processes that are gone.
        env: what the command was given.
    """
    return any(True for _ in _members(groups, env))


def send(signum: int, groups: Collection[int], env: Mapping[str, str]) -> None:
    """Send this signal to all of them."""
    for pid in _members(groups, env):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _ours(pid, groups, env):  # still: the descriptor is of the process that was looked at
                signal.pidfd_send_signal(pidfd, signum)
        except (ProcessLookupError, PermissionError):
            pass  # it has just ended; or it has become another user's, and is not ours to end
        finally:
            os.close(pidfd)


def lives_in(pid: int, groups: Collection[int]) -> bool:
    """Whether this process is in one of the groups, and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may hold spaces and brackets (proc(5)): state, parent, group.
            state, _, group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:  # it has just ended
        return False
    return int(group) in groups and state not in (b"Z", b"X")


def _members(groups: Collection[int], env: Mapping[str, str]) -> Iterator[int]:
    if not groups or PARENT not in env:
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and _ours(int(name), groups, env):
            yield int(name)


def _ours(pid: int, groups: Collection[int], env: Mapping[str, str]) -> bool:
    if not lives_in(pid, groups):
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{PARENT}={env[PARENT]}".encode() in file.read().split(b"\0")
    except OSError:  # it has just ended, or is another user's
        return False
