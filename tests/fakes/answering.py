"""An HTTP server on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tests.servers.listening import Listening


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    query: Mapping[str, str]
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class AnsweringServer:
    """Keeps connections open, and answers each request with what `answer` makes of it.

    Args:
        answer: called on the connection's thread; the request is the last in `asked` by then.
        tls: the server's side, for https.
    """

    def __init__(self, answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.tls = tls
        self.asked: list[Asked] = []
        #: One for each connection that was made.
        self.connections: list[socket.socket] = []
        #: Unix seconds that the answers say it is; None: the machine's.
        self.date: float | None = None
        self._listening = Listening(_Handler, self)
        self.url = self._listening.url.replace("http:", "https:" if tls else "http:")

    def __enter__(self) -> Self:
        self._listening.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self.connections:
            with suppress(OSError):  # the client has left already
                connection.shutdown(socket.SHUT_RDWR)
        self._listening.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: AnsweringServer

    def setup(self) -> None:
        if self.owner.tls is not None:
            self.request = self.owner.tls.wrap_socket(self.request, server_side=True)
        self.owner.connections.append(self.request)
        super().setup()

    def finish(self) -> None:
        super().finish()
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()  # wrapped, it is not the one that the server closes

    def handle(self) -> None:
        with suppress(ConnectionError, ssl.SSLError):  # a client may leave at any time
            super().handle()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        asked = Asked(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length", 0))),
        )
        self.owner.asked.append(asked)
        answer = self.owner.answer(asked)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.owner.date if timestamp is None else timestamp)

    def log_message(self, format: str, *args: object) -> None:
        pass
