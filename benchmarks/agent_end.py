"""The agent's end of the socket, played by the benchmark, so that it sees each of the hook's words as it comes."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from spotguard.hooks.ipc import protocol


class AgentEnd:
    """Listens at `path`, welcomes one hook, and keeps what it says."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(1)
        self._connection: socket.socket | None = None
        self._said: queue.SimpleQueue[protocol.Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="benchmark-agent", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # who still waits for a hook wakes up
        for held in (self._connection, self._listening):
            if held is not None:
                held.close()

    def say(self, message: protocol.Message) -> None:
        assert self._connection is not None
        self._connection.sendall(protocol.encode(message))

    def hear(self, wanted: Callable[[protocol.Message], bool], timeout: float = 60.0) -> protocol.Message:
        """The next word of the hook that is wanted; those before it are passed over.

        Raises:
            RuntimeError: the save has failed instead.
            queue.Empty: it was not said.
        """
        end = time.monotonic() + timeout
        while True:
            message = self._said.get(timeout=max(0.0, end - time.monotonic()))
            if isinstance(message, protocol.Failed):
                raise RuntimeError(f"the hook could not save: {message.reason}")
            if wanted(message):
                return message

    def _listen(self) -> None:
        try:
            self._connection, _ = self._listening.accept()
        except OSError:
            return  # no hook has come
        peer = protocol.Peer(protocol.Role.NEW)
        try:
            while data := self._connection.recv(65536):
                for message in peer.feed(data):
                    if isinstance(message, protocol.Register):
                        self.say(protocol.Welcome(1, message.pid))
                    self._said.put(message)
        except OSError:
            return  # the script was ended, in the middle of a word perhaps: what matters was heard before
