"""An HTTP server in the suite's own process, a thread for each connection, that ends with all of them."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any


class Listening:
    """Serves `handler` on `url`, each instance of it with `owner` as its attribute."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], owner: object) -> None:
        self._tcp = _Tcp(type(handler.__name__, (handler,), {"owner": owner}))
        self._thread = threading.Thread(target=self._tcp.serve_forever, args=(0.02,), name="listening")
        self.url = f"http://127.0.0.1:{self._tcp.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and join every thread."""
        if self._thread.ident is not None:
            self._tcp.shutdown()
            self._thread.join()
        self._tcp.close_all()


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Not `http.server.HTTPServer`: that looks its own name up in DNS when it binds."""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = False  # so that server_close joins them

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client has left already, which is what is wanted
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients that leave in mid-answer are nothing new
            super().handle_error(request, client_address)
