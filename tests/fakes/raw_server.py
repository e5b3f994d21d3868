"""A TCP server on loopback that does what a test says with each connection: for what no HTTP server would send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class RawServer:
    """Hands each connection to `serve`, on a thread of its own, and closes it after.

    Args:
        serve: gets the socket and the connection's number, from 0 on; it ends when the client or the test leaves.
    """

    def __init__(self, serve: Callable[[socket.socket, int], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="raw server")]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: How many connections were made.
        self.connections = 0

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._threads[0].join()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the test is over
                return
            with self._lock:
                self._open.append(connection)
            thread = threading.Thread(
                target=self._run, args=(connection, self.connections), name="raw connection"
            )
            self.connections += 1
            self._threads.append(thread)
            thread.start()

    def _run(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:  # the client may leave at any time
            self._serve(connection, number)
