"""The client of an agent's socket: it sends one question, then receives answers as they come."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from ...hooks.ipc import peer_credentials
from ...hooks.ipc.protocol import Message, Peer, Role, encode
from ...providers.clock import SystemClock
from ...providers.errors import ProtocolError


class AgentClient:
    """A connection to an agent.

    Raises:
        OSError: no agent answers, or the connection broke.
        ProtocolError: the agent sent something that is not of the protocol.
    """

    def __init__(self, path: Path, question: Message, timeout: float) -> None:
        self._clock = SystemClock()
        self._peer = Peer(Role.ANSWERER)
        self._ready: list[Message] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(timeout)
            self._sock.connect(os.fspath(path))
            self._check_owner(path)
            self._sock.sendall(encode(question))
        except BaseException:
            self._sock.close()
            raise

    def _check_owner(self, path: Path) -> None:
        if (uid := peer_credentials.stranger(self._sock, path)) is not None:
            raise PermissionError(
                f"uid {uid} listens at {path}, who is neither you nor root nor this machine's service"
            )

    def receive(self, timeout: float | None) -> Message | None:
        """Return the next message; None when the agent has closed the connection.

        Raises:
            TimeoutError: the message was not complete within `timeout` seconds, even if some of its bytes came.
        """
        until = None if timeout is None else self._clock.monotonic() + timeout
        while not self._ready:
            left = None if until is None else until - self._clock.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(left)
            data = self._sock.recv(64 * 1024)
            if not data:
                if self._peer.mid_frame:
                    raise ProtocolError("the agent closed the connection in the middle of a frame")
                return None
            self._ready += self._peer.feed(data)
        return self._ready.pop(0)

    def hang_up(self) -> None:
        """Make `receive` return None. Another thread calls this; `close` still has to be called."""
        with contextlib.suppress(OSError):  # the agent has closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()
