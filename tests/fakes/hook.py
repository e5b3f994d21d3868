"""A training process's end of the socket, without a training process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from spotguard.hooks.ipc.protocol import Register, Role, Welcome
from tests.fakes.talk import Talk


class FakeHook(Talk):
    def __init__(self, path: Path, role: Role = Role.AGENT_NEW) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        super().__init__(sock, role)
        try:
            sock.connect(os.fspath(path))
        except OSError:
            sock.close()
            raise

    @classmethod
    def registered(cls, path: Path, *, name: str = "train.py") -> FakeHook:
        hook = cls(path)
        hook.say(Register(os.getpid(), "run", name, "file:///s"))
        hook.hear(Welcome)
        return hook

    def hears_the_end(self) -> bool:
        """Wait for the agent to close this connection."""
        try:
            while data := self.sock.recv(65536):
                self.heard += self._peer.feed(data)
        except ConnectionResetError:
            pass  # closed with our bytes unread: an end as well
        return True

    def __enter__(self) -> FakeHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
