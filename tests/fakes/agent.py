"""An agent's end of the socket, without an agent: welcomes whoever comes."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TypeVar

from spotguard.hooks.ipc.protocol import Message, Register, Role, Welcome
from tests.fakes.talk import TIMEOUT, Talk

T = TypeVar("T", bound=Message)


class FakeAgent:
    """Serves one connection at a time, in the test's own thread."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(path))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT)
        self._talk: Talk | None = None

    def take(self) -> None:
        """The next connection, without a word."""
        self.hang_up()
        self._talk = Talk(self._listener.accept()[0], Role.NEW)

    def welcome(self, *, notice: bool = False, heartbeat: str = "") -> Register:
        """Take the next connection and let it in."""
        self.take()
        register = self.hear(Register)
        self.say(Welcome(1, os.getpid(), notice=notice, heartbeat=heartbeat))
        return register

    @property
    def talk(self) -> Talk:
        assert self._talk is not None, "nobody is connected"
        return self._talk

    def say(self, *messages: Message) -> None:
        self.talk.say(*messages)

    def hear(self, kind: type[T]) -> T:
        """The next message of this kind."""
        return self.talk.hear(kind)

    def hang_up(self) -> None:
        if self._talk is not None:
            self._talk.close()
            self._talk = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()

    def __enter__(self) -> FakeAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
