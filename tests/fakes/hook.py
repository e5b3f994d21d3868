"""A training process's end of the socket, without a training process: says what a test wants, hears everything."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TypeVar

from spotguard.hooks.protocol import Message, Peer, Register, Role, Welcome, encode

T = TypeVar("T", bound=Message)

#: Seconds: a net under a hung test, never something a passing test waits for.
TIMEOUT = 30.0


class FakeHook:
    def __init__(self, path: Path, role: Role = Role.AGENT_NEW) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        try:
            self.sock.connect(os.fspath(path))
        except OSError:
            self.sock.close()
            raise
        self._peer = Peer(role)
        self.heard: list[Message] = []

    @classmethod
    def registered(cls, path: Path, *, name: str = "train.py") -> FakeHook:
        hook = cls(path)
        hook.say(Register(os.getpid(), "run", name, "file:///s"))
        hook.hear(Welcome)
        return hook

    def say(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(encode(message) for message in messages))

    def hear(self, kind: type[T]) -> T:
        """The next message of this kind; what comes before it is kept in `heard`."""
        while True:
            for at, message in enumerate(self.heard):
                if isinstance(message, kind):
                    del self.heard[: at + 1]
                    return message
            data = self.sock.recv(65536)
            assert data, f"the agent closed the connection; heard {self.heard}"
            self.heard += self._peer.feed(data)

    def hears_the_end(self) -> bool:
        """Wait for the agent to close this connection."""
        try:
            while data := self.sock.recv(65536):
                self.heard += self._peer.feed(data)
        except ConnectionResetError:
            pass  # closed with our bytes unread: an end as well
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> FakeHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
