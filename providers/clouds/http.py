"""The HTTP client for link-local metadata services: whatever a server does, an answer or a failure, in bounded time.

It is `requests`' adapter without its `Session`: a session's gifts are what must not happen here. Proxies and
netrc from the environment (the clouds refuse forwarded requests, and a proxy would answer for another machine),
redirects (`Session.send` reads a redirect's whole body, uncapped, also where it does not follow), cookies. And
an agent polls for as long as the machine lives: 0.16 ms of CPU a request, against 0.27 ms through a session.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from ..errors import UsageError
from ..health import Health, blind, wrong_server

#: Bytes. The largest answer in use is an instance identity document of some 500; a captive portal's page fits
#: too, so that it can be named as what it is.
MAX_BODY = 64 * 1024
#: Bytes of one answer on the wire, headers included: the largest body that anybody allows (Azure's), and some more.
_MOST = 1280 * 1024

#: Seconds for one whole request, connecting included. The services answer within milliseconds; the vendors'
#: own watcher for AWS allows 2 as well (aws-node-termination-handler, pkg/ec2metadata).
TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """What a server said, whole."""

    status: int
    #: Names compare without case.
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer that could be looked at."""

    kind: Literal["timeout", "unreachable", "too-large", "redirect", "garbage"]
    #: One line that names the request: "PUT http://169.254.169.254/latest/api/token: no answer in 2 s".
    detail: str
    #: The connection broke after it stood, so that the same request may well succeed on a new one.
    dropped: bool = False
    #: The status of an answer that was not looked at further, or did not come to its end; 0 where none came.
    status: int = 0


def coded(health: Health, answer: MetadataAnswer | Failure) -> Health:
    """`health` with the status that was answered, where it is not sight: failed looks are counted by it."""
    return health if health.seeing else replace(health, code=answer.status)


def no_answer(failure: Failure, *, timeout: str, unreachable: str, stranger: str) -> Health:
    """How well a source sees that got none: the failure, and the advice of its cloud for each kind."""
    match failure.kind:
        case "timeout":
            return blind("timeout", failure.detail, timeout)
        case "unreachable":
            return blind("unreachable", failure.detail, unreachable)
        case "redirect" | "too-large":
            return wrong_server(failure.detail, stranger)
    return blind("garbage", failure.detail, stranger)


def server_named(answer: MetadataAnswer) -> str:
    """Who says it was them: " from 'nginx'", or "" where nobody does."""
    server = answer.headers.get("Server", "")
    return f" from {server[:40]!a}" if server else ""


def parse_json(body: bytes) -> Any:
    """What the body holds, None where it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not text, or nested to hurt
        return None


def parse_endpoint(url: str, origin: str) -> str:
    """The base URL in its one form: http, an IP address, no path.

    A name is refused: it would put DNS between a notice and us, and DNS is what fails while a machine goes down.

    Args:
        url: as the user wrote it.
        origin: the flag or the variable it was written in, for the message.
    """
    wanted = f"{origin} {url!r}: expected http:// and an IP address, as in http://127.0.0.1:1338"
    try:
        parts = urlsplit(url)
        port = parts.port
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError as error:
        raise UsageError(f"{wanted} or http://[::1]:1338") from error
    if parts.scheme != "http":
        raise UsageError(f"{wanted}; a metadata service speaks plain http only")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{wanted}, and nothing before or after it")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}" if port in (None, 80) else f"http://{host}:{port}"


class MetadataClient:
    """One server, one connection kept while the server keeps it. For one thread.

    Args:
        timeout: seconds, the most that a request may take.
        max_body: bytes, the most that an answer may have.
    """

    def __init__(self, endpoint: str, *, timeout: float = TIMEOUT, max_body: int = MAX_BODY) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._max_body = max_body
        self._adapter = _MetadataAdapter(max_retries=0)
        #: Of the answer that is being read, which may not come to its end.
        self._status = 0

    def prepare(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> requests.PreparedRequest:
        """A request to `send` as often as wanted; a header is changed by assigning to its `headers`."""
        # "identity": a compressed body would have to be unpacked before its size is known.
        fixed = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "spotguard"}
        url = self.endpoint + path
        return requests.Request(method, url, headers={**fixed, **headers}, data=body).prepare()

    def send(
        self, request: requests.PreparedRequest, *, timeout: float | None = None, again: bool = True
    ) -> MetadataAnswer | Failure:
        """Ask once, within `timeout` seconds all in all.

        Args:
            again: whether a request whose connection broke is sent once more. False for who counts requests, and for
                a POST.
        """
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        end = time.monotonic() + seconds
        try:
            return self._send(request, seconds)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if not (again and _dropped(error)):
                return _failure(request, error, seconds, self._status)
        # A server may close a kept connection just as we write to it (RFC 9112, 9.6), and GET and PUT are
        # idempotent: a second try on a fresh connection, out of the same time, saves a blind second.
        try:
            return self._send(request, max(end - time.monotonic(), 0.001))
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            return _failure(request, error, seconds, self._status)

    def close(self) -> None:
        self._adapter.close()

    def _send(self, request: requests.PreparedRequest, seconds: float) -> MetadataAnswer | Failure:
        total, self._status = urllib3.Timeout(total=seconds), 0
        response = self._adapter.send(request, stream=True, timeout=total, proxies={})  # type: ignore[arg-type]
        self._status = response.status_code
        try:
            if response.is_redirect:
                where = _shown(response.headers["location"])
                what = f"{_line(request)}: {response.status_code}, redirected to {where}"
                return Failure("redirect", what, status=response.status_code)
            # One more than allowed, to know that there is more. Without decoding: see `prepare`.
            body = response.raw.read(self._max_body + 1, decode_content=False)
            if len(body) > self._max_body:
                what = f"{_line(request)}: more than {self._max_body} bytes"
                return Failure("too-large", what, status=response.status_code)
            if response.raw.length_remaining:
                what = f"{_line(request)}: the connection broke within the answer"
                return Failure("unreachable", what, status=response.status_code)
            return MetadataAnswer(response.status_code, response.headers, body)
        finally:
            # A body read to its end has given its connection back already; any other is closed, unread.
            response.raw.close()


class _TooLarge(OSError):
    """More was received for one answer than any has."""


class _WholeAnswerSocket(socket.socket):
    """A socket whose timeout is for all that is received, until it is set anew. So is its cap.

    The ordinary timeout starts again with every byte, so a server that trickles holds its client for ever, in
    the headers just as in the body. urllib3 sets the timeout once before each answer.
    """

    _end: float | None = None
    _received = 0

    def settimeout(self, value: float | None, /) -> None:
        # The machine's own clock, whatever Clock the caller holds: the kernel's timeouts are real time.
        self._end = None if value is None else time.monotonic() + value
        self._received = 0
        super().settimeout(value)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer took too long")
            super().settimeout(left)
        # Headers too: http.client reads any number of answers with status 100 before the one that counts (97 MiB: seen).
        if self._received > _MOST:
            raise _TooLarge("the answer is too large")
        count = super().recv_into(buffer, nbytes, flags)
        self._received += count
        return count


class _MetadataConnection(urllib3.connection.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        plain = self.sock
        self.sock = _WholeAnswerSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.sock.settimeout(self.timeout)


class _MetadataPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _MetadataConnection


class _MetadataAdapter(HTTPAdapter):
    """`requests`' adapter over connections as above, for http only: there is no pool class for anything else."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        self.poolmanager = urllib3.PoolManager(num_pools=1, maxsize=1, block=False)
        self.poolmanager.pool_classes_by_scheme = {"http": _MetadataPool}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all it wraps: urllib3 and requests carry causes in `args` and `reason`, not only in `__cause__`."""
    yield error
    inner = (*error.args, getattr(error, "reason", None), error.__cause__)
    for cause in inner:
        if isinstance(cause, BaseException):
            yield from _chain(cause)


def _dropped(error: Exception) -> bool:
    """Whether the connection broke after it stood: reset, or closed without a word."""
    return any(isinstance(cause, ConnectionError) for cause in _chain(error)) and not any(
        isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in _chain(error)
    )


def _failure(request: requests.PreparedRequest, error: Exception, seconds: float, status: int) -> Failure:
    causes = list(_chain(error))
    if any(
        isinstance(cause, (urllib3.exceptions.TimeoutError, TimeoutError)) for cause in causes
    ) and not any(isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in causes):
        return Failure("timeout", f"{_line(request)}: no answer in {seconds:g} s", status=status)
    if any(isinstance(cause, _TooLarge) for cause in causes):
        return Failure(
            "too-large", f"{_line(request)}: more than {_MOST} bytes with its headers", status=status
        )
    for cause in causes:
        if isinstance(cause, OSError) and not isinstance(cause, requests.RequestException):
            why = f"{_line(request)}: {cause.strerror or 'the connection broke'}"
            return Failure("unreachable", why, dropped=_dropped(error), status=status)
    for cause in causes:
        if isinstance(cause, http.client.HTTPException):
            return Failure("garbage", f"{_line(request)}: not HTTP: {_shown(str(cause))}", status=status)
    return Failure("garbage", f"{_line(request)}: {type(causes[-1]).__name__}", status=status)


def _line(request: requests.PreparedRequest) -> str:
    return f"{request.method} {request.url}"


def _shown(text: str) -> str:
    """A server's words, fit for one line of a log."""
    return ascii(text[:80])
