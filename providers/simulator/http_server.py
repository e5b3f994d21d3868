"""A small HTTP server on loopback that can misbehave: the base of all simulated metadata services."""

from __future__ import annotations

import ipaddress
import logging
import socket
import socketserver
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from ..clock import Clock
from ..errors import UsageError

log = logging.getLogger("spotguard.providers")

#: Requests that the server remembers: some hours of an agent's polls, some MiB at most.
_REMEMBERED = 10_000

#: SO_LINGER on, for 0 seconds: close() then resets the connection (socket(7)).
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A client's request. Header names are in lower case."""

    method: str
    #: The path as the client wrote it, with its query.
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and how the server sends it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Seconds before the first byte.
    delay: float = 0.0
    #: Seconds between one byte of the body and the next.
    pace: float = 0.0
    #: Instead of an answer: "hang" sends nothing until the client leaves, "reset" resets the connection.
    instead: Literal["", "hang", "reset"] = ""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request and the status of its answer; 0 if the server gave no answer."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    #: Monotonic seconds.
    at: float


class LoopbackServer:
    """A server that answers on loopback, with a thread for each connection, and remembers the requests.

    Args:
        answer: returns the reply. Several connection threads may call it at the same time.
        clock: paces slow answers and dates the log of requests.
        host: 127.0.0.1 or ::1. Other addresses are refused, because a client would believe the simulator's answers.
        port: 0 picks a free port.
        keep_alive: whether a connection serves more than one request.

    Raises:
        UsageError: the host is not on loopback.
    """

    def __init__(
        self,
        answer: Callable[[HttpRequest], Reply],
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_alive: bool = True,
    ) -> None:
        self.answer = answer
        self.clock = clock
        self.keep_alive = keep_alive
        self.stopping = threading.Event()
        self._host, self._port = _loopback(host), port
        self._seen: deque[ServedRequest] = deque(maxlen=_REMEMBERED)
        self._change = threading.Condition()
        self._adopted: socket.socket | None = None
        self._tcp: _Tcp | None = None
        self._thread: threading.Thread | None = None

    def adopt(self, listening: socket.socket) -> None:
        """Serve on a socket that listens already, instead of host and port.

        The server owns the socket from now on. The caller is responsible for who can reach it.
        """
        self._adopted = listening

    def start(self) -> str:
        """Listen, and return the base URL.

        Raises:
            UsageError: the server cannot listen on this host and port.
        """
        self.stopping.clear()
        try:
            tcp = _Tcp(self, self._host, self._port, self._adopted)
        except OSError as error:
            raise UsageError(f"cannot listen on {self._host} port {self._port}: {error.strerror}") from error
        self._tcp = tcp
        self._thread = threading.Thread(target=tcp.serve_forever, args=(0.02,), name="simulator")
        self._thread.start()
        host, port = tcp.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def stop(self) -> None:
        """Close every connection and join every thread. A second call does nothing."""
        self.stopping.set()
        if self._tcp is None or self._thread is None:
            return
        self._tcp.shutdown()
        self._thread.join()
        self._tcp.close_all()
        self._tcp = self._thread = None

    @property
    def seen(self) -> tuple[ServedRequest, ...]:
        with self._change:
            return tuple(self._seen)

    def forget(self) -> None:
        with self._change:
            self._seen.clear()

    def remember(self, request: HttpRequest, status: int) -> None:
        with self._change:
            now = self.clock.monotonic()
            self._seen.append(ServedRequest(request.method, request.path, status, request.headers, now))
            self._change.notify_all()

    def wait_for(self, wanted: Callable[[ServedRequest], bool], count: int, timeout: float) -> bool:
        """Block until `count` of the remembered requests match `wanted`, for at most `timeout` real seconds."""
        with self._change:
            return self._change.wait_for(lambda: sum(map(wanted, self._seen)) >= count, timeout)


def _loopback(host: str) -> str:
    try:
        if (address := ipaddress.ip_address(host)).is_loopback:
            return str(address)
    except ValueError as error:
        raise UsageError(f"--host {host!r}: expected 127.0.0.1 or ::1") from error
    raise UsageError(f"--host {host!r}: a simulator listens on loopback only, 127.0.0.1 or ::1")


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The server's TCP side. It is no `http.server.HTTPServer`, which asks DNS for its own name when it binds."""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = False  # so that server_close joins them

    def __init__(
        self, owner: LoopbackServer, host: str, port: int, listening: socket.socket | None = None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, port), _LoopbackHandler, bind_and_activate=listening is None)
        if listening is not None:
            self.socket.close()
            self.socket = listening

    def process_request(self, request: Any, client_address: Any) -> None:
        # On the accepting thread: that thread ends before `close_all` runs, so `close_all` misses no connection.
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = "simulator connection"
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == _RESET:
            request.close()  # without a shutdown, which would end the connection normally first
        else:
            super().shutdown_request(request)

    def close_all(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client has left already
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that leaves during an answer is normal
            log.exception("the simulator failed at a request of %s", client_address)


class _LoopbackHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Tcp

    def handle_one_request(self) -> None:
        """Read one request and answer it."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or len(self.raw_requestline) > 65536 or not self.parse_request():
            self.close_connection = True
            return
        request = HttpRequest(self.command, self.path, self._headers(), self._body())
        reply = self.server.owner.answer(request)
        self.server.owner.remember(request, 0 if reply.instead else reply.status)
        self._give(request, reply)

    def _headers(self) -> dict[str, str]:
        """Return the headers by name. A repeated header becomes one list with commas (RFC 9110, 5.2)."""
        joined: dict[str, str] = {}
        for name, value in self.headers.items():
            known = joined.get(name.lower())
            joined[name.lower()] = value if known is None else f"{known}, {value}"
        return joined

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the owner remembers the requests."""

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > 65536 or "Transfer-Encoding" in self.headers:
            self.close_connection = (
                True  # the body stays unread, so the next bytes on this connection are no request
            )
            return b""
        return self.rfile.read(int(length))

    def _give(self, request: HttpRequest, reply: Reply) -> None:
        owner = self.server.owner
        if reply.instead == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        elif reply.instead == "hang":
            while self.connection.recv(4096):  # ends when the client leaves, or `stop` closes the connection
                pass
        if reply.instead or owner.clock.wait(owner.stopping, reply.delay):
            self.close_connection = True
            return
        self.wfile.write(self._head(reply))
        if request.method != "HEAD":
            self._write(reply)

    def _head(self, reply: Reply) -> bytes:
        owner = self.server.owner
        phrase = self.responses.get(reply.status, ("",))[0]
        headers = {
            "Date": formatdate(owner.clock.time(), usegmt=True),
            "Content-Length": str(len(reply.body)),
        }
        headers |= reply.headers
        if not owner.keep_alive:
            headers["Connection"] = "close"
            self.close_connection = True
        lines = [
            f"HTTP/1.1 {reply.status} {phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, reply: Reply) -> None:
        if not reply.pace:
            self.wfile.write(reply.body)
            return
        owner = self.server.owner
        for position in range(len(reply.body)):
            if owner.clock.wait(owner.stopping, reply.pace):
                self.close_connection = True
                return
            self.wfile.write(reply.body[position : position + 1])
