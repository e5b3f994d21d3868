"""Identity of the process at the other end of a Unix socket, as the kernel reports it (unix(7), `struct ucred`)."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

_UCRED = struct.Struct("iII")  # pid, uid, gid

#: Bytes of ancillary data for one sender's credentials.
ROOM = socket.CMSG_SPACE(_UCRED.size)


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected, or that listens."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def stranger(sock: socket.socket, path: str | Path) -> int | None:
    """Return the uid of the process that listens at `path` if it must not be trusted, else None.

    An untrusted listener could end this process, hide a notice from it or invent one. Trusted are root, our own
    user and the user of a service. A service's user owns the directory of the socket, in a place where only root can
    make directories (as systemd makes /run/spotguard, RuntimeDirectory= in systemd.exec(5)).

    The kernel reports no uid for a process outside our user namespace (a pod with `hostUsers: false`;
    user_namespaces(7)). Such a listener is trusted if only the owner of such a directory can have put the socket
    there.
    """
    _, uid = peer(sock)
    if uid in (0, os.geteuid()):
        return None
    folder = Path(path).parent
    above, within = folder.parent.stat(), folder.stat()
    if above.st_uid != 0 or above.st_mode & stat.S_IWOTH:
        return uid
    fenced = not within.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if within.st_uid == uid or (fenced and uid == _untold()) else uid


def _untold() -> int:
    """Return the uid by which the kernel replaces uids of other user namespaces."""
    return int(Path("/proc/sys/kernel/overflowuid").read_text())


def sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the pid of the sender from the ancillary data, 0 if it is absent."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_UCRED.unpack(data[: _UCRED.size])[0])
    return 0
