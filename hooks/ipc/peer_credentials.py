"""Who is at the other end of a Unix socket, as the kernel tells it (unix(7), `struct ucred`)."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

_UCRED = struct.Struct("iII")  # pid, uid, gid

#: The room for one sender's credentials beside the bytes that it sent.
ROOM = socket.CMSG_SPACE(_UCRED.size)


def peer(sock: socket.socket) -> tuple[int, int]:
    """Pid and uid of whoever connected, or listens."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def stranger(sock: socket.socket, path: str | Path) -> int | None:
    """The uid of whoever listens at `path`, where it must not be believed: it could end this process, keep a notice from it or
    invent one. Believed is root, who we are, and the user of a service: whose folder is that user's, made where only root
    can (as systemd makes /run/spotguard, RuntimeDirectory= in systemd.exec(5)).

    Of who is outside of our user namespace the kernel tells no uid (a pod with `hostUsers: false`; user_namespaces(7)). It is the
    service where nobody but the owner of such a folder can have put the socket there.
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
    """What stands for a uid that is not of this user namespace."""
    return int(Path("/proc/sys/kernel/overflowuid").read_text())


def sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The pid of whoever sent what came with this; 0 where it is not told."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_UCRED.unpack(data[: _UCRED.size])[0])
    return 0
