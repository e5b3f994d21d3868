"""One end of a hook's socket, in the test's own thread: says what a test wants, hears everything."""

from __future__ import annotations

import socket
from typing import TypeVar

from spotguard.hooks.ipc.protocol import Message, Peer, Role, encode

T = TypeVar("T", bound=Message)

#: Seconds: a net under a hung test, never something a passing test waits for.
TIMEOUT = 100.0


class Talk:
    def __init__(self, sock: socket.socket, role: Role) -> None:
        sock.settimeout(TIMEOUT)
        self.sock = sock
        self._peer = Peer(role)
        self.heard: list[Message] = []

    def say(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(encode(message) for message in messages))

    def hear(self, kind: type[T]) -> T:
        """The next message of this kind; what comes before it is dropped."""
        while True:
            for at, message in enumerate(self.heard):
                if isinstance(message, kind):
                    del self.heard[: at + 1]
                    return message
            data = self.sock.recv(65536)
            assert data, f"the other end closed the connection; heard {self.heard}"
            self.heard += self._peer.feed(data)

    def close(self) -> None:
        self.sock.close()
