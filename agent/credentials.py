"""Who is at the other end of a Unix socket, as the kernel tells it (unix(7), `struct ucred`)."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("iII")  # pid, uid, gid

#: The room for one sender's credentials beside the bytes that it sent.
ROOM = socket.CMSG_SPACE(_UCRED.size)


def peer(sock: socket.socket) -> tuple[int, int]:
    """Pid and uid of whoever connected, or listens."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The pid of whoever sent what came with this; 0 where it is not told."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_UCRED.unpack(data[: _UCRED.size])[0])
    return 0
