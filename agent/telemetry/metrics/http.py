"""The HTTP endpoint that Prometheus scrapes: on 127.0.0.1, with a few connections at a time. The agent waits for none of them.

It replaces `prometheus_client.start_http_server`, which binds by `http.server` and so looks its own name up in DNS. That
server also gives every connection a thread without a limit, and waits for ever for a client's data. Any user of this machine
can connect here, and the agent needs its threads and memory for notices.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from ....providers.errors import UsageError

logger = logging.getLogger("spotguard.agent")

HOST = "127.0.0.1"
#: Connections at a time. One more closes the oldest, so that idle connections never keep a scrape out.
MOST = 4
#: Connections that the kernel keeps until they are accepted. If it has no room, a scrape arrives a second later.
_WAITING = 64
#: Seconds of silence that end a connection.
_PATIENCE = 5.0


def bound(port: int) -> socket.socket:
    """Return a socket that is bound to the port and does not listen.

    Another program can still bind and listen then (SO_REUSEADDR, seen on Linux). So a mere check keeps no run from starting.

    Raises:
        UsageError: another program listens there, or the kernel refuses the port.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
    except OSError as error:
        sock.close()
        raise _taken(port, error) from error
    return sock


def _taken(port: int, error: OSError) -> UsageError:
    why = os.strerror(error.errno or 0)  # the error's own text would repeat the address
    return UsageError(
        f"--metrics-port {port}: cannot listen at {HOST}:{port}: {why}; give another port: each run and each agent "
        "of a machine needs one of its own [SG703]"
    )


class Endpoint:
    """The endpoint: it listens from construction on, and answers from `start` to `close`.

    Raises:
        UsageError: the endpoint cannot listen at the port.
    """

    def __init__(self, port: int, registry: CollectorRegistry) -> None:
        self._listening = bound(port)
        try:
            self._listening.listen(_WAITING)
        except OSError as error:  # another program that was bound too listened first
            self._listening.close()
            raise _taken(port, error) from error
        self.url = f"http://{HOST}:{self._listening.getsockname()[1]}/metrics"
        self._handler = type("Handler", (_ScrapeHandler,), {"registry": registry})
        self._open: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="spotguard-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close the connections that are being answered, without waiting for them."""
        with self._lock:
            self._closed = True
            for connection in self._open.values():
                _hang_up(connection)
        _hang_up(self._listening)  # wakes `accept` (closing alone does not, on Linux)
        if self._thread.ident is not None:
            self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        never = threading.Event()
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._closed:
                    return
                logger.debug("no scrape can be accepted: %s", error)  # out of descriptors, for instance
                never.wait(1.0)
                continue
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            while len(self._open) >= MOST:
                _hang_up(self._open.pop(next(iter(self._open))))
            self._open[connection.fileno()] = connection
        thread = threading.Thread(
            target=self._answer, args=(connection,), name="spotguard-scrape", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the user's limit of processes is reached
            logger.debug("no scrape can be answered: %s", error)
            self._over(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            self._handler(connection, (HOST, 0), self)
        except OSError:
            pass  # the client left, or its time was over
        except Exception:
            logger.exception("a scrape of the metrics could not be answered")
        finally:
            self._over(connection)

    def _over(self, connection: socket.socket) -> None:
        with self._lock:
            # Closed under the lock, so that no other connection gets its descriptor while the dict still holds it.
            self._open = {fd: one for fd, one in self._open.items() if one is not connection}
            _hang_up(connection)
            connection.close()


class _ScrapeHandler(MetricsHandler):
    """The handler of one request; the connection closes after the answer (HTTP/1.0)."""

    timeout = _PATIENCE

    def do_GET(self) -> None:
        if self.path.partition("?")[0] in ("/", "/metrics"):
            super().do_GET()
        else:
            self.send_error(404, "the metrics are at /metrics")

    def version_string(self) -> str:
        return "spotguard"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is not worth a line."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
