"""An agent's end of the socket, without an agent: welcomes whoever comes, says what a test wants, hears everything."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TypeVar

from spotguard.hooks.protocol import Message, Peer, Register, Role, Welcome, encode
from tests.fakes.hook import TIMEOUT

T = TypeVar("T", bound=Message)


class FakeAgent:
    """Serves one connection at a time, in the test's own thread."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(path))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT)
        self._connection: socket.socket | None = None

    def welcome(self, *, notice: bool = False) -> Register:
        """Take the next connection and let it in."""
        self.hang_up()
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(TIMEOUT)
        self._peer = Peer(Role.NEW)
        self.heard: list[Message] = []
        register = self.hear(Register)
        self.say(Welcome(1, os.getpid(), notice=notice))
        return register

    def say(self, *messages: Message) -> None:
        assert self._connection is not None
        self._connection.sendall(b"".join(encode(message) for message in messages))

    def hear(self, kind: type[T]) -> T:
        """The next message of this kind."""
        while True:
            for at, message in enumerate(self.heard):
                if isinstance(message, kind):
                    del self.heard[: at + 1]
                    return message
            assert self._connection is not None
            data = self._connection.recv(65536)
            assert data, f"the hook closed the connection; heard {self.heard}"
            self.heard += self._peer.feed(data)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()

    def __enter__(self) -> FakeAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
