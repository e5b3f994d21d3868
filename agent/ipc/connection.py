"""One connection of the socket server: bytes in, messages out, limits for a peer, and processes that lost their connection.

No method blocks. Every fault of a peer is a `ProtocolError` or an `OSError`, and the server drops that peer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...hooks.ipc import peer_credentials
from ...hooks.ipc.protocol import Message, Peer, Register, Role, encode
from ...providers.errors import ProtocolError

logger = logging.getLogger("spotguard.agent")

#: Bytes of one read: some 200 of the shortest messages.
_CHUNK = 16 * 1024
#: Bytes that count as one message, if that is more than there are messages in them.
_A_MESSAGE = 4096
#: Characters of a text of a message, and of a key or value; and the number of keys. The agent keeps some of them for long.
_LONGEST, _SHORT, _KEYS = 2000, 200, 64
#: Messages that a new connection counts as, and its first message: each registration concerns all sessions, as does each question.
A_CONNECTION, A_FIRST = 2, 18
#: Linux 6.5: the peer's pidfd from the socket. There is no moment in which the pid could belong to another process.
_SO_PEERPIDFD = 77


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for a peer, in seconds and bytes. A real hook needs a thousandth of each."""

    connections: int = 1024
    #: Connections that have sent no message yet.
    unregistered: int = 256
    #: Connections of one user (a service has many).
    per_user: int = 512
    #: Seconds until the first message is complete.
    hello: float = 5.0
    #: Seconds until a frame that has begun is complete.
    stall: float = 5.0
    #: Seconds in which a peer reads no byte of the data that waits for it.
    blocked: float = 10.0
    #: Bytes that wait for a peer.
    outgoing: int = 1024 * 1024
    #: Messages a second of one connection, for good, and at once.
    rate: float = 20.0
    burst: float = 500.0
    #: Those of one user: `per_user` ranks that save send four a second each.
    user_rate: float = 2048.0
    user_burst: float = 2048.0
    #: Processes that are followed after they lost their socket.
    followed: int = 256


class Allowance:
    """The messages that may still come: up to `burst` at once, and `rate` a second for good."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def spend(self, count: float, now: float) -> bool:
        """Return whether so many messages may come."""
        left = min(self._burst, self._left + (now - self._at) * self._rate) - count
        self._left, self._at = max(-self._burst, left), now
        return self._left >= 0


class Connection:
    """A peer on the socket. `number` is also the number of its session."""

    def __init__(self, number: int, sock: socket.socket, now: float, limits: Limits) -> None:
        self.number = number
        self.sock = sock
        self.pid, self.uid = peer_credentials.peer(sock)
        self.peer = Peer(Role.NEW)
        #: The peer's `Register` message, once it has registered.
        self.register: Register | None = None
        self.pidfd = -1
        #: The server closes the connection when everything is sent.
        self.closing = False
        #: The last read found no more bytes.
        self.drained = False
        self._limits = limits
        self._since = now
        self._frame_since: float | None = None
        self._blocked_since: float | None = None
        self._out = bytearray()
        self.allowance = Allowance(limits.rate, limits.burst, now)
        #: Messages of the last read, or what its bytes count as.
        self.cost = 0

    @property
    def new(self) -> bool:
        return self.peer.role is Role.NEW

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def read(self, now: float) -> list[Message] | None:
        """Return the messages that are complete now; None at the end of the stream.

        Raises:
            ProtocolError, OSError: the server has to drop the peer.
        """
        self.cost = 0
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(_CHUNK, peer_credentials.ROOM)
        except (BlockingIOError, InterruptedError):
            self.drained = True
            return []
        self.drained = False
        # The ancillary buffer has room for credentials only. The kernel has closed any descriptors that came.
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("it sent file descriptors")
        if not data:
            return None
        # A child that inherited the descriptor may write on it (a data loader's worker, forked before the hook's
        # handler ran). The kernel never merges bytes of two senders in one read, so a child's read is discarded whole.
        if peer_credentials.sender(ancillary) != self.pid:
            return []
        was_mid_frame = self.peer.mid_frame
        messages = self.peer.feed(data)
        if not self.peer.mid_frame:
            self._frame_since = None
        elif messages or not was_mid_frame:
            self._frame_since = now
        self.cost = max(len(messages), len(data) // _A_MESSAGE)
        if not self.allowance.spend(self.cost, now):
            limits = self._limits
            raise ProtocolError(f"more than {limits.rate:g} messages a second, or {limits.burst:g} at once")
        long = was_mid_frame or len(data) > _LONGEST
        return [_bounded(each) for each in messages] if long else messages

    def queue(self, message: Message) -> None:
        """Queue `message`; it is sent as the peer reads.

        Raises:
            ProtocolError: the peer does not read.
        """
        self._out += encode(message)
        if len(self._out) > self._limits.outgoing:
            raise ProtocolError(f"it left {len(self._out)} bytes unread")

    def flush(self, now: float) -> None:
        """Send as many queued bytes as the kernel takes."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
                self._blocked_since = None
        except (BlockingIOError, InterruptedError):
            self._blocked_since = self._blocked_since or now

    def overdue(self, now: float) -> str:
        """Return the reason why the peer's time is over; "" while it is not."""
        if self.new and now - self._since >= self._limits.hello:
            return f"sent nothing for {self._limits.hello:g} s"
        if self._frame_since is not None and now - self._frame_since >= self._limits.stall:
            return f"stalled in the middle of a frame for {self._limits.stall:g} s"
        if self._blocked_since is not None and now - self._blocked_since >= self._limits.blocked:
            return f"read nothing for {self._limits.blocked:g} s"
        return ""

    @property
    def due(self) -> float | None:
        """Monotonic seconds at which `overdue` may change its answer; None if it cannot."""
        limits = self._limits
        times = [
            self._since + limits.hello if self.new else None,
            None if self._frame_since is None else self._frame_since + limits.stall,
            None if self._blocked_since is None else self._blocked_since + limits.blocked,
        ]
        return min((t for t in times if t is not None), default=None)

    def follow(self) -> bool:
        """Open the peer's pidfd, so that the agent sees its death even if a child keeps the socket open.

        Returns:
            False if the process is not visible: it has ended, or is in a PID namespace that is not below the agent's.
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
        """Close the socket, and return the pidfd, which the caller owns then (-1: none)."""
        self.sock.close()
        pidfd, self.pidfd = self.pidfd, -1
        return pidfd


def _bounded(message: Message) -> Message:
    """Return the message with texts of bounded length: a real hook's are shorter."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(message):  # type: ignore[arg-type]
        value = getattr(message, field.name)
        if isinstance(value, str):
            changes[field.name] = value[:_LONGEST]
        elif isinstance(value, dict):
            known = [(key, each) for key, each in value.items() if isinstance(each, str | int | float)]
            changes[field.name] = {
                key[:_SHORT]: each[:_SHORT] if isinstance(each, str) else each for key, each in known[:_KEYS]
            }
    return dataclasses.replace(message, **changes)  # type: ignore[type-var]


class DisconnectedPeers:
    """The live processes that lost their socket. Each may be saving, so the agent follows its end and may signal it.

    Args:
        selector: the selector of the thread that uses this object. That thread calls the registered callbacks.
        most: the most processes. If there are more, one of the user with the most is given up: the one followed longest.
        gone: called with the session and the reason when a process is followed no longer.
    """

    def __init__(self, selector: selectors.BaseSelector, most: int, gone: Callable[[int, str], None]) -> None:
        self._selector = selector
        self._most = most
        self._gone = gone
        self._pidfds: dict[tuple[int, int], int] = {}
        self._users: dict[tuple[int, int], int] = {}

    def add(self, number: int, pid: int, pidfd: int, uid: int) -> None:
        if len(self._pidfds) >= self._most:
            most, _ = Counter(self._users.values()).most_common(1)[0]
            self._forget(
                *next(each for each in self._users if self._users[each] == most), "followed for too long"
            )
        self._pidfds[number, pid], self._users[number, pid] = pidfd, uid
        ended = "its process ended"
        try:
            self._selector.register(
                pidfd, selectors.EVENT_READ, lambda mask: self._forget(number, pid, ended)
            )
        except OSError as error:  # the process counts as live, and the agent waits for it until the deadline
            logger.warning("the end of pid %d, which lost its socket, is not seen: %s", pid, error.strerror)

    def of(self, number: int) -> dict[int, int]:
        """Return the pidfds of a session's processes by pid. Two processes may have had the same session number."""
        return {pid: pidfd for (session, pid), pidfd in self._pidfds.items() if session == number}

    def has(self, pid: int) -> bool:
        """Return whether this process lives and has lost its socket."""
        return any(pid == each for _, each in self._pidfds)

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)

    def _forget(self, number: int, pid: int, reason: str) -> None:
        self._users.pop((number, pid), None)
        pidfd = self._pidfds.pop((number, pid), -1)
        if pidfd >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pidfd)
            os.close(pidfd)
            self._gone(number, reason)
