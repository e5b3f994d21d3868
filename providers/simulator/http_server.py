"""A small HTTP server on loopback that can also misbehave: what all simulated metadata services stand on."""

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

#: Requests that are remembered: some hours of an agent's polling, some MiB at most.
_REMEMBERED = 10_000

#: SO_LINGER on, for 0 seconds: close() then resets the connection (socket(7)).
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a client asked. Header names are in lower case."""

    method: str
    #: As it was written, with what follows a question mark.
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the manner of giving it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Seconds before the first byte.
    delay: float = 0.0
    #: Seconds between one byte of the body and the next.
    pace: float = 0.0
    #: Instead of an answer: "hang" says nothing until the client leaves, "reset" breaks the connection.
    instead: Literal["", "hang", "reset"] = ""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request as it was met. `status` is 0 where no answer was given."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]
    #: Monotonic seconds.
    at: float


class LoopbackServer:
    """Serves `answer` on loopback, a thread for each connection, and remembers what was asked.

    Args:
        answer: called on the connections' threads, several at a time.
        clock: paces slow answers and dates the log of requests.
        host: 127.0.0.1 or ::1. Anything that others can reach is refused: a client believes what is served here.
        port: 0 picks a free one.
        keep_alive: whether connections serve more than one request.
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
        """Serve on a socket that listens already, in place of host and port. It is ours from now on, and whom it can be
        reached by is the care of whoever has opened it."""
        self._adopted = listening

    def start(self) -> str:
        """Listen, and return the base URL."""
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
        """Close every connection and join every thread. Stopping twice is stopping once."""
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
        """Block until `count` of the remembered requests are as `wanted`, for at most `timeout` real seconds."""
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
    """Not `http.server.HTTPServer`: that looks its own name up in DNS when it binds."""

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
        with self._lock:  # here, on the accepting thread: `close_all` runs after it and misses none
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = "simulator connection"
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == _RESET:
            request.close()  # without the shutdown that would say goodbye first
        else:
            super().shutdown_request(request)

    def close_all(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client has left already, which is what is wanted
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients that leave in mid-answer are nothing new
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
        """By name; a header that came twice is one list with a comma, as RFC 9110, 5.2 reads it."""
        joined: dict[str, str] = {}
        for name, value in self.headers.items():
            known = joined.get(name.lower())
            joined[name.lower()] = value if known is None else f"{known}, {value}"
        return joined

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the owner remembers requests, and says what matters of them."""

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > 65536 or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # unread: what follows on this connection is no request
            return b""
        return self.rfile.read(int(length))

    def _give(self, request: HttpRequest, reply: Reply) -> None:
        owner = self.server.owner
        if reply.instead == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        elif reply.instead == "hang":
            while self.connection.recv(4096):  # until the client leaves, or `stop` closes the connection
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
