"""One connection of the socket server: bytes in, messages out, what a peer may cost us, and whoever lost its connection.

No method blocks. Whatever a peer does wrong is a `ProtocolError` or an `OSError`, and the server drops it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ...hooks.ipc import peer_credentials
from ...hooks.ipc.protocol import Message, Peer, Register, Role, encode
from ...providers.errors import ProtocolError

logger = logging.getLogger("spotguard.agent")

_CHUNK = 64 * 1024
#: Linux 6.5: the peer's pidfd, with no moment in which its number could be another process's.
_SO_PEERPIDFD = 77


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may cost. Seconds and bytes; a real hook needs a thousandth of each."""

    connections: int = 1024
    #: Those that have said nothing yet.
    unregistered: int = 256
    #: Of one user (a service has many).
    per_user: int = 512
    #: For the first message to be whole.
    hello: float = 5.0
    #: For any frame to be whole, once it has begun.
    stall: float = 5.0
    #: Without reading one byte of what waits for it.
    blocked: float = 10.0
    outgoing: int = 1024 * 1024
    #: Messages in one second.
    rate: int = 1000
    #: Processes followed after they had lost their socket.
    followed: int = 256


class Connection:
    """A peer on the socket. `number` is its session's."""

    def __init__(self, number: int, sock: socket.socket, now: float, limits: Limits) -> None:
        self.number = number
        self.sock = sock
        self.pid, self.uid = peer_credentials.peer(sock)
        self.peer = Peer(Role.NEW)
        #: What it said of itself, once it has registered.
        self.register: Register | None = None
        self.pidfd = -1
        #: Close it when everything is sent.
        self.closing = False
        #: The last read found nothing more.
        self.drained = False
        self._limits = limits
        self._since = now
        self._frame_since: float | None = None
        self._blocked_since: float | None = None
        self._out = bytearray()
        self._second = now
        self._count = 0

    @property
    def new(self) -> bool:
        return self.peer.role is Role.NEW

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def read(self, now: float) -> list[Message] | None:
        """The messages that have become whole; None at the end of the stream.

        Raises:
            ProtocolError, OSError: the peer is to be dropped.
        """
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(_CHUNK, peer_credentials.ROOM)
        except (BlockingIOError, InterruptedError):
            self.drained = True
            return []
        self.drained = False
        if (
            flags & socket.MSG_CTRUNC
        ):  # the room is for credentials alone; the kernel has closed what else came
            raise ProtocolError("it sent file descriptors")
        if not data:
            return None
        # A child that inherited the descriptor may write on it (a data loader's worker, forked before the hook's
        # handler ran). The kernel never merges bytes of two senders in one read, so theirs can be left out whole.
        if peer_credentials.sender(ancillary) != self.pid:
            return []
        owed = self.peer.mid_frame
        messages = self.peer.feed(data)
        if not self.peer.mid_frame:
            self._frame_since = None
        elif messages or not owed:
            self._frame_since = now
        self._count_messages(len(messages), now)
        return messages

    def _count_messages(self, count: int, now: float) -> None:
        if now - self._second >= 1.0:
            self._second, self._count = now, 0
        self._count += count
        if self._count > self._limits.rate:
            raise ProtocolError(f"more than {self._limits.rate} messages in a second")

    def queue(self, message: Message) -> None:
        """Have `message` sent as the peer reads.

        Raises:
            ProtocolError: the peer does not read.
        """
        self._out += encode(message)
        if len(self._out) > self._limits.outgoing:
            raise ProtocolError(f"it left {len(self._out)} bytes unread")

    def flush(self, now: float) -> None:
        """Send what the kernel takes."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
                self._blocked_since = None
        except (BlockingIOError, InterruptedError):
            self._blocked_since = self._blocked_since or now

    def overdue(self, now: float) -> str:
        """Why the peer has had its time; "" while it has not."""
        if self.new and now - self._since >= self._limits.hello:
            return f"said nothing for {self._limits.hello:g} s"
        if self._frame_since is not None and now - self._frame_since >= self._limits.stall:
            return f"stalled in the middle of a frame for {self._limits.stall:g} s"
        if self._blocked_since is not None and now - self._blocked_since >= self._limits.blocked:
            return f"read nothing for {self._limits.blocked:g} s"
        return ""

    @property
    def due(self) -> float | None:
        """When `overdue` may change its answer."""
        limits = self._limits
        times = [
            self._since + limits.hello if self.new else None,
            None if self._frame_since is None else self._frame_since + limits.stall,
            None if self._blocked_since is None else self._blocked_since + limits.blocked,
        ]
        return min((t for t in times if t is not None), default=None)

    def follow(self) -> bool:
        """Hold the peer's process, so that its death is seen although a child keeps the socket open.

        Returns:
            False where it cannot be seen from here: it has ended, or is in a PID namespace that is not below ours.
        """
        try:
            self.pidfd = self.sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:  # an older kernel
            try:
                self.pidfd = os.pidfd_open(self.pid)
            except (OSError, ValueError):
                return False
        return bool(self.pid > 0)

    def release(self) -> int:
        """Close the socket and hand over the pidfd (-1: none)."""
        self.sock.close()
        pidfd, self.pidfd = self.pidfd, -1
        return pidfd


class DisconnectedPeers:
    """Processes that lost their socket and live: each may be saving, its end is news, and it may be signalled.

    Args:
        selector: of the thread that uses this; it calls what is registered with it.
        most: processes; of more, the one that was followed longest is given up.
        gone: called with the session and the reason when one is followed no longer.
    """

    def __init__(self, selector: selectors.BaseSelector, most: int, gone: Callable[[int, str], None]) -> None:
        self._selector = selector
        self._most = most
        self._gone = gone
        self._pidfds: dict[tuple[int, int], int] = {}

    def add(self, number: int, pid: int, pidfd: int) -> None:
        if len(self._pidfds) >= self._most:
            self._forget(*next(iter(self._pidfds)), "followed for too long")
        self._pidfds[number, pid] = pidfd
        ended = "its process ended"
        try:
            self._selector.register(
                pidfd, selectors.EVENT_READ, lambda mask: self._forget(number, pid, ended)
            )
        except OSError as error:  # it is not taken for dead, and waited for until the deadline
            logger.warning("the end of pid %d, which lost its socket, is not seen: %s", pid, error.strerror)

    def of(self, number: int) -> dict[int, int]:
        """The session's process, which may be two of one number of ours: pidfd by pid."""
        return {pid: pidfd for (of, pid), pidfd in self._pidfds.items() if of == number}

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)

    def _forget(self, number: int, pid: int, reason: str) -> None:
        pidfd = self._pidfds.pop((number, pid), -1)
        if pidfd >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pidfd)
            os.close(pidfd)
            self._gone(number, reason)


def has_ended(pidfd: int) -> bool:
    """Whether the process is gone: its pidfd is readable then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def is_exiting(pid: int) -> bool:
    """Whether the process runs nothing of its own any more, though it is not gone: one that was killed gives its memory
    back first, which takes seconds where there is much of it (proc_pid_stat(5), flags: PF_EXITING)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = file.read().rpartition(b")")[2].split()[6]
    except OSError:  # it has just gone
        return True
    return bool(int(flags) & 0x4)
